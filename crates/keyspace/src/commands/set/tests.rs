use std::collections::BTreeSet;

use stdx::Prng;

use crate::testing::Harness;

/// The bulk strings of a reply.
fn words(reply: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = reply.split("\r\n").collect();
    let texts = lines.windows(2).filter(|pair| pair[0].starts_with('$') && pair[0] != "$-1");
    texts.map(|pair| pair[1].to_owned()).collect()
}

fn member(prng: &mut Prng) -> String {
    match prng.below(6) {
        0 => format!("text:{}", prng.below(400)),
        1 => (prng.draw() as i64 >> prng.below(64)).to_string(),
        _ => prng.below(400).to_string(),
    }
}

#[test]
fn a_set_in_any_form_is_one_of_a_naive_set() {
    let mut prng = Prng::new(2);
    let mut harness = Harness::new();
    let mut encodings = BTreeSet::new();
    for round in 0..60 {
        let mut naive: BTreeSet<String> = BTreeSet::new();
        harness.run("DEL s");
        // Integers alone, or anything; some hundred, or some.
        let integers_alone = round % 2 == 0;
        let steps = [30, 300, 1_500][round % 3];
        for _ in 0..steps {
            let mut member = member(&mut prng);
            if integers_alone {
                member = member.replace("text:", "");
            }
            let adds = prng.chance(2, 3);
            let changes = if adds { naive.insert(member.clone()) } else { naive.remove(&member) };
            let name = if adds { "SADD" } else { "SREM" };
            let reply = harness.run(&format!("{name} s {member}"));
            assert_eq!(reply, format!(":{}\r\n", u8::from(changes)), "{name} {member}");
            assert_eq!(harness.run(&format!("SISMEMBER s {member}")), format!(":{}\r\n", u8::from(adds)));
        }
        assert_eq!(words(&harness.run("SMEMBERS s")), naive);
        assert_eq!(harness.run("SCARD s"), format!(":{}\r\n", naive.len()));
        encodings.extend(words(&harness.run("OBJECT ENCODING s")));
        // What is taken goes, and nothing else.
        let mut taken = BTreeSet::new();
        while taken.len() < naive.len() {
            let popped = words(&harness.run(&format!("SPOP s {}", 1 + prng.below(40))));
            assert!(popped.iter().all(|member| naive.contains(member) && !taken.contains(member)));
            taken.extend(popped);
        }
        assert_eq!(harness.run("EXISTS s"), ":0\r\n");
    }
    assert_eq!(encodings, ["hashtable", "intset", "listpack"].map(str::to_owned).into());
}

#[test]
fn members_are_drawn_evenly_from_every_form() {
    for prefix in ["", "text:"] {
        for count in [50, 700] {
            let mut harness = Harness::new();
            let members: Vec<String> = (0..count).map(|number| format!("{prefix}{number}")).collect();
            harness.run(&format!("SADD s {}", members.join(" ")));
            let mut drawn = BTreeSet::new();
            for _ in 0..count * 12 {
                drawn.extend(words(&harness.run("SRANDMEMBER s")));
            }
            assert_eq!(drawn.len(), count as usize, "{prefix} {count}");
            assert_eq!(words(&harness.run("SRANDMEMBER s 20")).len(), 20);
        }
    }
}

#[test]
fn algebra_is_that_of_naive_sets() {
    let mut prng = Prng::new(4);
    let mut harness = Harness::new();
    for _ in 0..300 {
        harness.run("DEL a b c d");
        let mut sets = [const { BTreeSet::new() }; 3];
        for (name, set) in ["a", "b", "c"].iter().zip(&mut sets) {
            let most = if prng.chance(1, 5) { 600 } else { 30 };
            for _ in 0..prng.below(most) {
                let member = member(&mut prng);
                harness.run(&format!("SADD {name} {member}"));
                set.insert(member);
            }
        }
        let [a, b, c] = &sets;
        let both = |left: &BTreeSet<String>, right| left.intersection(right).cloned().collect::<BTreeSet<_>>();
        let cases = [
            ("INTER", both(&both(a, b), c)),
            ("UNION", a.iter().chain(b).chain(c).cloned().collect()),
            ("DIFF", a.iter().filter(|member| !b.contains(*member) && !c.contains(*member)).cloned().collect()),
        ];
        for (name, expected) in cases {
            assert_eq!(words(&harness.run(&format!("S{name} a b c"))), expected, "{name}");
            let stored = harness.run(&format!("S{name}STORE d a b c"));
            assert_eq!(stored, format!(":{}\r\n", expected.len()));
            assert_eq!(words(&harness.run("SMEMBERS d")), expected);
        }
        let count = both(a, b).len();
        assert_eq!(harness.run("SINTERCARD 2 a b"), format!(":{count}\r\n"));
        assert_eq!(harness.run("SINTERCARD 2 a b LIMIT 3"), format!(":{}\r\n", count.min(3)));
    }
}
