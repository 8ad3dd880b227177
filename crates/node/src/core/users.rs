//! Users and parameters of this core: what is configured, who may do what, and the files of both.

use std::sync::Arc;

use group::ids::CoreId;
use group::{Group, Standing};

use super::Core;
use super::parts::FileOutcome;
use crate::acl::{DEFAULT, Users};
use crate::commands;
use crate::core_messages::CoreMessage;
use crate::event::Action;
use crate::settings::Settings;

impl Core {
    /// An import that was under way when the process ended still is, until CONFIG SET ends it: the settings follow the
    /// log of a group that serves.
    pub(super) fn keep_import_mode(&mut self) {
        let is_importing = |group: &Group| group.standing() == Standing::Serving && group.is_in_import_mode();
        if self.context.settings.import_mode || !self.groups().any(is_importing) {
            return;
        }
        let settings = Arc::make_mut(&mut self.context.settings);
        settings.set("import-mode", "yes").expect("a parameter and one of its values");
        self.coordinator.limits = settings.limits();
        self.coordinator.tuning = settings.tuning();
        for group in self.groups.iter_mut().flatten() {
            group.set_import_mode(true);
        }
    }

    /// Sets parameters that have been checked.
    pub(crate) fn configure(&mut self, pairs: &[(String, String)], actions: &mut Vec<Action>) {
        let settings = Arc::make_mut(&mut self.context.settings);
        for (name, value) in pairs {
            settings.set(name, value).expect("checked before the question was put");
        }
        let settings = &self.context.settings;
        let settings = Arc::clone(settings);
        let noted = self.context.noted();
        for group in self.groups.iter_mut().flatten() {
            group.append_fsync = settings.append_fsync;
            group.allows_memory = settings.allows_memory;
            group.upkeep().set_tuning(settings.tuning());
            group.upkeep().listen(noted);
            group.set_limits(settings.limits());
            if pairs.iter().any(|(name, _)| name == "import-mode") {
                group.set_import_mode(settings.import_mode);
            }
        }
        self.coordinator.noted = settings.notify.noted();
        self.coordinator.limits = settings.limits();
        self.coordinator.tuning = settings.tuning();
        self.coordinator.follows_site = settings.is_site_read_only;
        self.context.timings.obey(&settings);
        if pairs.iter().any(|(name, _)| name == "requirepass") {
            self.require_password();
        }
        let settings = &self.context.settings;
        for (name, _) in pairs {
            let name = Settings::parameter(name).expect("checked before the question was put").name;
            actions.push(Action::Configured { name, value: settings.get(name).to_owned() });
        }
    }

    /// Gives the default user the password that has been configured. Every core does so at once; that a change of users
    /// on its way does not undo it is up to the first core, which hands its own to all.
    pub(super) fn require_password(&mut self) {
        if self.context.shares_users() {
            // Every core does the same, and what the cluster says stands over it.
            Arc::make_mut(&mut self.own_users).require(&self.context.settings.password);
            return self.overlay_users();
        }
        let mut users = Users::clone(&self.context.access.users);
        users.require(&self.context.settings.password);
        if self.context.core.0 == 0 {
            let users = Arc::new(users);
            self.install_users(&users);
            for core in (1..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, CoreMessage::Users(Arc::clone(&users)));
            }
        } else {
            users.version = self.context.access.users.version;
            self.install_users(&Arc::new(users));
        }
    }

    /// These are the users from now on. Sessions obey the new rules at once. A session is ended if its user is gone, or
    /// if it listens to what it may no longer hear.
    pub(crate) fn install_users(&mut self, users: &Arc<Users>) {
        if users.version < self.context.access.users.version {
            return; // a later change has come from the first core already
        }
        self.own_users = Arc::clone(users);
        self.overlay_users();
    }

    /// Lets what the cluster says of users stand over what they are here, unless this node was told to pass it over.
    pub(crate) fn overlay_users(&mut self) {
        let is_passed_over = self.context.settings.get("cluster-users") == "ignore";
        let users = if is_passed_over || self.context.parameters.users().next().is_none() {
            Arc::clone(&self.own_users)
        } else {
            Arc::new(self.own_users.overlaid(&self.context.parameters))
        };
        self.obey_users(&users);
    }

    pub(super) fn obey_users(&mut self, users: &Arc<Users>) {
        // A client that came while it was not known yet that a password is needed has not said one.
        let must_say = !self.is_loaded() && !users.default_user().needs_no_password();
        self.context.access.users = Arc::clone(users);
        let mut ended = Vec::new();
        for session in self.sessions.iter_mut() {
            if must_say && session.user.name == DEFAULT && session.user.needs_no_password() {
                session.is_authenticated = false;
            }
            let may_stay = match users.get(&session.user.name) {
                None => false,
                Some(user) if **user == *session.user => true,
                Some(user) => {
                    session.user = Arc::clone(user);
                    commands::may_keep_listening(user, session)
                }
            };
            if !may_stay {
                session.is_closing = true;
                ended.push(session.id);
            }
        }
        ended.into_iter().for_each(|id| self.sessions.mark(id));
    }

    /// Notes that the host is asked to work on the file of users for the question being answered; false if it is at
    /// work for another.
    pub(crate) fn begin_file_work(&mut self) -> bool {
        let is_free = self.questions.file_work.is_none();
        if is_free {
            self.questions.file_work = Some((self.questions.answering, None));
        }
        is_free
    }

    /// What has come of the work on the file of users, if it was for the question being answered and is done.
    pub(crate) fn take_file_outcome(&mut self) -> Option<FileOutcome> {
        self.questions.file_work.take_if(|(owner, outcome)| *owner == self.questions.answering && outcome.is_some())?.1
    }
}
