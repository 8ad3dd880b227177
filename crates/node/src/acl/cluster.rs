//! Users of a cluster: what has been said of them through any node is replicated state of group 0.
//!
//! It is kept among the parameters of the cluster, name by name, and overrides what a node was started with. A change
//! is the new rules of some users, made by a core from what it knows. It is refused if something else has been said of
//! one of them meanwhile, and then made again from that. So two changes of one user are made one after the other, no
//! matter where they come from. See decision 0040.

use std::sync::Arc;

use message::parameters::{Pairs, Parameters, user_change};

use super::{DEFAULT, User, Users, merge_selectors};
use crate::acl::change::Change;

/// What somebody wants to be so for the whole cluster.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    /// What ACL SETUSER or DELUSER has said.
    Change(Change),
    /// These users, and no others: what ACL LOAD has read.
    All(Arc<Users>),
    /// This password, or none, for the default user.
    Password(String),
}

impl Users {
    /// These users with what has been said in the cluster in place of what they are here.
    pub(crate) fn overlaid(&self, said: &Parameters) -> Self {
        let mut users = self.clone();
        for (name, rules) in said.users() {
            if rules.is_empty() && name != DEFAULT {
                users.users.remove(&name);
                continue;
            }
            let words: Vec<&[u8]> = rules.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
            let mut user = User::new(&name, false);
            for rule in merge_selectors(&words).unwrap_or_default() {
                // A rule about a command that only another version knows says nothing about those of this one.
                let _ = user.apply(&rule, false);
            }
            users.users.insert(name, Arc::new(user));
        }
        users
    }

    /// The change that a wish comes down to for a node that knows these users, and how many users it removes.
    ///
    /// # Errors
    /// In Redis's words, if a rule is none.
    pub(crate) fn to_wish(&self, wish: &Wish, said: &Parameters, all_channels: bool) -> Result<(Pairs, u64), String> {
        let mut pairs = Pairs::new();
        let mut removed = 0;
        let mut say = |name: &[u8], rules: &[u8]| pairs.extend(user_change(name, said.said_of_user(name), rules));
        match wish {
            Wish::Change(Change::Set { name, rules }) => {
                let mut trial = self.clone();
                let rules: Vec<_> = rules.iter().map(Vec::as_slice).collect();
                trial.set(name, &rules, all_channels)?;
                say(name, &trial.users[name].describe());
            }
            Wish::Change(Change::Remove(names)) => {
                let mut trial = self.clone();
                for name in names.iter().filter(|name| trial.remove(name)) {
                    say(name, b"");
                    removed += 1;
                }
            }
            Wish::All(users) => {
                for user in users.iter() {
                    say(&user.name, &user.describe());
                }
                for gone in self.users.keys().filter(|name| users.get(name).is_none()) {
                    say(gone, b"");
                }
            }
            Wish::Password(password) => {
                let mut trial = self.clone();
                trial.require(password);
                say(DEFAULT, &trial.default_user().describe());
            }
        }
        Ok((pairs, removed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, rules: &str) -> Wish {
        let rules = rules.split(' ').map(|rule| rule.as_bytes().to_vec()).collect();
        Wish::Change(Change::Set { name: name.as_bytes().to_vec(), rules })
    }

    /// One node of a cluster.
    struct Node {
        own: Users,
        users: Users,
    }

    impl Node {
        fn new(lines: &[&str]) -> Self {
            let text = lines.join("\n");
            let own = Users::from_file("users.acl", text.as_bytes(), false).expect("good lines");
            Self { users: own.clone(), own }
        }

        fn learn(&mut self, said: &Parameters) {
            self.users = self.own.overlaid(said);
        }

        fn show(&self) -> Vec<String> {
            let text = String::from_utf8(self.users.to_file()).expect("plain names");
            text.lines().map(str::to_owned).collect()
        }
    }

    #[test]
    fn what_is_said_through_one_node_holds_on_all_and_the_rest_stays_each_nodes_own() {
        let mut said = Parameters::default();
        let mut one = Node::new(&["user alice on nopass +get ~a*"]);
        let mut other = Node::new(&["user bob on nopass +set ~b*"]);
        let (pairs, _) =
            one.users.to_wish(&set("carol", "on >secret +@read ~c* (+set ~d*)"), &said, false).expect("rules");
        assert!(!format!("{pairs:?}").contains("secret"), "digests only: {pairs:?}");
        assert!(said.apply(pairs));
        [&mut one, &mut other].into_iter().for_each(|node| node.learn(&said));
        assert_eq!(one.users.get(b"carol"), other.users.get(b"carol"));
        assert!(one.users.get(b"carol").expect("she is there").accepts(b"secret"));
        assert!(one.users.get(b"alice").is_some() && other.users.get(b"alice").is_none(), "a node's own");

        let remove = Wish::Change(Change::Remove(vec![b"alice".to_vec(), b"nobody".to_vec()]));
        let (pairs, removed) = one.users.to_wish(&remove, &said, false).expect("no rules");
        assert_eq!(removed, 1);
        assert!(said.apply(pairs));
        one.learn(&said);
        assert!(one.users.get(b"alice").is_none(), "also who is in a file");
        assert!(one.users.to_wish(&set("x", "+nosuch"), &said, false).is_err());
    }

    #[test]
    fn two_changes_of_one_user_are_made_one_after_the_other() {
        let mut said = Parameters::default();
        let (mut one, mut other) = (Node::new(&[]), Node::new(&[]));
        let first = one.users.to_wish(&set("alice", "on +get"), &said, false).expect("rules").0;
        let second = other.users.to_wish(&set("alice", "+set"), &said, false).expect("rules").0;
        assert!(said.apply(first));
        assert!(!said.apply(second), "it was made for a user who was not there");
        [&mut one, &mut other].into_iter().for_each(|node| node.learn(&said));
        let again = other.users.to_wish(&set("alice", "+set"), &said, false).expect("rules").0;
        assert!(said.apply(again));
        [&mut one, &mut other].into_iter().for_each(|node| node.learn(&said));
        assert_eq!(one.show(), other.show());
        assert!(one.show()[0].contains(" +get") && one.show()[0].contains(" +set"), "{:?}", one.show());
    }

    #[test]
    fn a_file_that_is_loaded_is_all_there_is_and_a_password_is_for_all() {
        let mut said = Parameters::default();
        let mut one = Node::new(&["user alice on nopass +get ~*", "user bob on nopass +get ~*"]);
        let file = Users::from_file("a", b"user carol on nopass &* +@all %R~x* (~y +get)", false).expect("a line");
        assert!(said.apply(one.users.to_wish(&Wish::All(Arc::new(file.clone())), &said, false).expect("users").0));
        one.learn(&said);
        assert_eq!(one.users.to_file(), file.to_file());
        assert!(said.apply(one.users.to_wish(&Wish::Password("hush".to_owned()), &said, false).expect("a user").0));
        let mut other = Node::new(&["user default on nopass ~* +@all"]);
        other.learn(&said);
        assert!(other.users.default_user().accepts(b"hush") && !other.users.default_user().accepts(b"else"));
    }
}
