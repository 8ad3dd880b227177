use super::*;
use crate::{Expiry, Layout, Options, Tuning};
use stdx::UnixMillis;

fn keyspace(policy: Policy) -> Keyspace {
    let tuning = Tuning { policy, ..Tuning::default() };
    Keyspace::new(Options { databases: 2, hash_seed: 3, layout: Layout::Slots, tuning })
}

fn at_second(second: i64) -> Moment {
    Moment::at(second * 1000, 0)
}

fn number_of(key: &[u8]) -> u64 {
    std::str::from_utf8(key).unwrap().parse().unwrap()
}

/// Evicts half of a thousand keys and answers how many of them were among the half that should go.
fn well_chosen(keyspace: &mut Keyspace, policy: Policy, moment: Moment, old: impl Fn(u64) -> bool) -> usize {
    let mut prng = Prng::new(9);
    let mut good = 0;
    for _ in 0..500 {
        let (database, key) = keyspace.victim(policy, &mut prng, moment).expect("there are keys that may go");
        good += usize::from(old(number_of(&key)));
        assert!(keyspace.edit(database, moment).remove(&key), "a victim exists");
    }
    good
}

#[test]
fn the_least_recently_used_go_first() {
    let mut keyspace = keyspace(Policy::AllkeysLru);
    for number in 0..1000 {
        let key = number.to_string();
        keyspace.edit((number % 2) as u16, at_second(number)).set_string(key.as_bytes(), b"v", Expiry::Clear);
    }
    for number in 0..500 {
        assert!(
            keyspace.view((number % 2) as u16, at_second(2000 + number)).entry(number.to_string().as_bytes()).is_some()
        );
    }
    let good = well_chosen(&mut keyspace, Policy::AllkeysLru, at_second(3000), |number| number >= 500);
    assert!(good > 440, "{good}");
}

#[test]
fn the_least_often_used_go_first() {
    let mut keyspace = keyspace(Policy::AllkeysLfu);
    for number in 0..1000u64 {
        let key = number.to_string();
        keyspace.edit(0, at_second(0)).set_string(key.as_bytes(), b"v", Expiry::Clear);
        for _ in 0..if number < 500 { 200 } else { 0 } {
            keyspace.view(0, at_second(0)).entry(key.as_bytes());
        }
    }
    let good = well_chosen(&mut keyspace, Policy::AllkeysLfu, at_second(0), |number| number >= 500);
    assert!(good > 440, "{good}");
}

#[test]
fn the_first_to_expire_go_first_and_lasting_keys_never() {
    let mut keyspace = keyspace(Policy::VolatileTtl);
    for number in 0..2000 {
        let expiry = if number < 1000 { Expiry::At(UnixMillis(10_000 + number)) } else { Expiry::Clear };
        keyspace.edit(0, at_second(0)).set_string(number.to_string().as_bytes(), b"v", expiry);
    }
    let good = well_chosen(&mut keyspace, Policy::VolatileTtl, at_second(1), |number| number < 500);
    assert!(good > 440, "{good}");
    for policy in [Policy::VolatileTtl, Policy::VolatileLru, Policy::VolatileLfu, Policy::VolatileRandom] {
        let mut prng = Prng::new(1);
        while let Some((_, key)) = keyspace.victim(policy, &mut prng, at_second(1)) {
            assert!(number_of(&key) < 1000, "{policy:?}");
            keyspace.edit(0, at_second(1)).remove(&key);
            if keyspace.expiring_count(0).is_multiple_of(100) {
                break;
            }
        }
    }
}

#[test]
fn nothing_goes_when_nothing_may() {
    let mut prng = Prng::new(1);
    let mut keyspace = keyspace(Policy::VolatileLru);
    for policy in [Policy::AllkeysLru, Policy::AllkeysRandom, Policy::VolatileRandom, Policy::NoEviction] {
        assert_eq!(keyspace.victim(policy, &mut prng, at_second(1)), None);
    }
    keyspace.edit(1, at_second(0)).set_string(b"lasting", b"v", Expiry::Clear);
    assert_eq!(keyspace.victim(Policy::NoEviction, &mut prng, at_second(1)), None);
    for policy in [Policy::VolatileLru, Policy::VolatileRandom, Policy::VolatileTtl] {
        assert_eq!(keyspace.victim(policy, &mut prng, at_second(1)), None);
    }
    let victim = Some((1, b"lasting".to_vec()));
    assert_eq!(keyspace.victim(Policy::AllkeysLru, &mut prng, at_second(1)), victim);
    assert_eq!(keyspace.victim(Policy::AllkeysRandom, &mut prng, at_second(1)), victim);
}

#[test]
fn random_eviction_reaches_every_key() {
    let mut keyspace = keyspace(Policy::AllkeysRandom);
    for number in 0..50 {
        keyspace.edit(number % 2, at_second(0)).set_string(number.to_string().as_bytes(), b"v", Expiry::Clear);
    }
    let mut prng = Prng::new(1);
    let mut seen: Vec<_> =
        (0..2000).map(|_| keyspace.victim(Policy::AllkeysRandom, &mut prng, at_second(0)).unwrap()).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 50);
}
