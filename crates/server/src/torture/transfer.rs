//! Accounts with a total that never changes.
//!
//! Each transfer watches two accounts, reads them, and in one transaction writes both and appends its number to a
//! journal of the client's own. Keys lie where their hashes take them, so that most transactions touch several groups.
//! Now and then a client reads all accounts at once: the sum must be right at every moment. In the end the journals
//! tell which transfers are in effect, once each, and the balances must follow from exactly those.

use std::io;

use resp::{Frame, encode_request};
use stdx::Prng;

use super::crew::{Pen, Player};
use super::findings::{Findings, seconds};
use crate::connection::Connection;

/// What every account holds at first.
const DEPOSIT: i64 = 1_000;
/// One exchange in so many reads all accounts.
const READ_ALL_EVERY: u64 = 8;
/// Transfers in one key of a journal.
const JOURNAL_ENTRIES: usize = 100;
/// Transfers of all clients together; those who have made their share only read.
const TRANSFERS_MAX: usize = 4_000_000;

/// How the clients behave.
#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: u64,
    pub accounts: u64,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Unknown,
    Committed { at_ns: u64 },
    Aborted,
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: u64,
    to: u64,
    amount: i64,
    end: End,
}

/// One client.
pub struct TransferPlayer {
    client: u64,
    plan: Plan,
    prng: Prng,
    transfers: Vec<Transfer>,
    findings: Findings,
}

/// All clients of a run.
pub fn players(plan: &Plan) -> Vec<TransferPlayer> {
    let mut prng = Prng::new(plan.seed);
    let player = |client| TransferPlayer {
        client,
        plan: plan.clone(),
        prng: prng.fork(),
        transfers: Vec::new(),
        findings: Findings::default(),
    };
    (0..plan.clients).map(player).collect()
}

/// Opens the accounts.
///
/// # Errors
/// If a deposit is not acknowledged.
pub fn prepare(plan: &Plan, connection: &mut Connection) -> io::Result<()> {
    for account in 0..plan.accounts {
        connection.insist(&["SET", &account_key(account), &DEPOSIT.to_string()])?;
    }
    Ok(())
}

impl Player for TransferPlayer {
    fn play(&mut self, connection: &mut Connection, pen: &mut Pen) -> io::Result<()> {
        let is_spent = self.transfers.len() >= TRANSFERS_MAX / self.plan.clients as usize;
        if is_spent || self.prng.chance(1, READ_ALL_EVERY) {
            self.read_all(connection, pen)
        } else {
            self.transfer(connection, pen)
        }
    }
}

impl TransferPlayer {
    fn read_all(&mut self, connection: &mut Connection, pen: &mut Pen) -> io::Result<()> {
        let called_ns = pen.now_ns();
        let reply = connection.call(&all_accounts(&self.plan))?;
        let now_ns = pen.now_ns();
        if let Frame::Error(text) = &reply {
            pen.refused(text);
            return Ok(());
        }
        self.findings.judge_total(&reply, &self.plan, || format!("a read at {}", seconds(now_ns)));
        pen.success(false, called_ns, now_ns);
        Ok(())
    }

    fn transfer(&mut self, connection: &mut Connection, pen: &mut Pen) -> io::Result<()> {
        let from = self.prng.below(self.plan.accounts);
        let to = (from + 1 + self.prng.below(self.plan.accounts - 1)) % self.plan.accounts;
        let amount = 1 + self.prng.below(20) as i64;
        let (from_key, to_key) = (account_key(from), account_key(to));
        let called_ns = pen.now_ns();
        let mut out = Vec::new();
        encode_request(&mut out, &["WATCH", &from_key, &to_key]);
        encode_request(&mut out, &["GET", &from_key]);
        encode_request(&mut out, &["GET", &to_key]);
        // If this one were refused and what follows were not, the writes would be made one by one.
        encode_request(&mut out, &["MULTI"]);
        connection.send(&out)?;
        let replies = [connection.receive()?, connection.receive()?, connection.receive()?, connection.receive()?];
        if let Some(Frame::Error(text)) = replies.iter().find(|reply| reply.is_error()) {
            pen.refused(text);
            connection.call(&["DISCARD"])?;
            connection.call(&["UNWATCH"])?;
            return Ok(());
        }
        let balances = (number(&replies[1]), number(&replies[2]));
        let (Some(from_balance), Some(to_balance)) = balances else {
            self.findings.altered(|| format!("{from_key} and {to_key} hold {} and {}", replies[1], replies[2]));
            connection.call(&["DISCARD"])?;
            return Ok(());
        };
        if from_balance < amount {
            connection.call(&["DISCARD"])?;
            pen.success(false, called_ns, pen.now_ns());
            return Ok(());
        }
        let this = self.transfers.len();
        self.transfers.push(Transfer { from, to, amount, end: End::Unknown });
        out.clear();
        encode_request(&mut out, &["SET", &from_key, &(from_balance - amount).to_string()]);
        encode_request(&mut out, &["SET", &to_key, &(to_balance + amount).to_string()]);
        encode_request(&mut out, &["APPEND", &journal_key(self.client, this / JOURNAL_ENTRIES), &token(this)]);
        encode_request(&mut out, &["EXEC"]);
        let outcome = connection.send(&out).and_then(|()| {
            for _ in 0..3 {
                connection.receive()?; // what is wrong with one of them, EXEC says as well
            }
            connection.receive()
        });
        let now_ns = pen.now_ns();
        let reply = outcome.inspect_err(|_| self.findings.unknown += 1)?;
        let end = &mut self.transfers[this].end;
        match &reply {
            Frame::Array(parts) if !parts.iter().any(Frame::is_error) => {
                *end = End::Committed { at_ns: now_ns };
                self.findings.acknowledged += 1;
                pen.success(true, called_ns, now_ns);
            }
            Frame::Null => {
                *end = End::Aborted;
                pen.aborted();
                pen.success(false, called_ns, now_ns);
            }
            Frame::Error(text) => {
                match text.windows(7).any(|word| word == b"unknown") {
                    true => self.findings.unknown += 1,
                    false => *end = End::Aborted,
                }
                pen.refused(text);
            }
            other => self.findings.altered(|| format!("EXEC answered {other}")),
        }
        Ok(())
    }
}

impl Findings {
    fn judge_total(&mut self, reply: &Frame, plan: &Plan, when: impl Fn() -> String) -> Option<Vec<i64>> {
        let balances: Option<Vec<i64>> = reply.elements().map(|found| found.iter().map(number).collect())?;
        let Some(balances) = balances else {
            self.anomaly("account without a balance", || format!("{}: {reply}", when()));
            return None;
        };
        let (total, expected) = (balances.iter().sum::<i64>(), DEPOSIT * plan.accounts as i64);
        if total != expected {
            self.anomaly("total not conserved", || format!("{} sums up to {total}, not {expected}", when()));
        }
        Some(balances)
    }
}

/// Holds journals and balances against each other and against what was promised.
///
/// # Errors
/// If the connection does not hold.
pub fn audit(players: Vec<TransferPlayer>, connection: &mut Connection) -> io::Result<Findings> {
    let Some(plan) = players.first().map(|player| player.plan.clone()) else { return Ok(Findings::default()) };
    let mut all = Findings::default();
    let mut expected = vec![DEPOSIT; plan.accounts as usize];
    let mut transfer_count = 0;
    for mut player in players {
        transfer_count += player.transfers.len();
        let counts = read_journals(&player, connection, &mut all)?;
        judge_transfers(player.client, &player.transfers, &counts, &mut all);
        for (transfer, _) in player.transfers.iter().zip(&counts).filter(|(_, count)| **count > 0) {
            expected[transfer.from as usize] -= transfer.amount;
            expected[transfer.to as usize] += transfer.amount;
        }
        all.merge(std::mem::take(&mut player.findings));
    }
    let reply = connection.insist(&all_accounts(&plan))?;
    let balances = all.judge_total(&reply, &plan, || "the end".to_owned()).unwrap_or_default();
    for (account, (balance, expected)) in balances.iter().zip(&expected).enumerate() {
        if balance != expected {
            let key = account_key(account as u64);
            all.anomaly("balance", || format!("{key} holds {balance}; the journals make it {expected}"));
        }
    }
    let verdict = if all.anomalies.is_empty() { "balances and total agree" } else { "they do NOT agree" };
    all.checks
        .push(format!("{transfer_count} transfers in the journals against {} accounts: {verdict}", plan.accounts));
    Ok(all)
}

/// How often each transfer of a client stands in its journals.
fn read_journals(player: &TransferPlayer, connection: &mut Connection, all: &mut Findings) -> io::Result<Vec<u32>> {
    let mut counts = vec![0; player.transfers.len()];
    for part in 0..counts.len().div_ceil(JOURNAL_ENTRIES) {
        let key = journal_key(player.client, part);
        let reply = connection.insist(&["GET", &key])?;
        let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned();
        for word in text.split_terminator(';') {
            match word.parse::<usize>().ok().filter(|number| number / JOURNAL_ENTRIES == part) {
                Some(number) if number < counts.len() => counts[number] += 1,
                _ => all.altered(|| format!("{key} holds '{word}'")),
            }
        }
    }
    Ok(counts)
}

fn judge_transfers(client: u64, transfers: &[Transfer], counts: &[u32], all: &mut Findings) {
    for (number, (transfer, count)) in transfers.iter().zip(counts).enumerate() {
        let what = || format!("transfer {number} of client {client}");
        match (transfer.end, count) {
            (End::Committed { at_ns }, 0) => all.lost(at_ns, what),
            (End::Aborted, 1..) => all.anomaly("aborted, yet there", what),
            (End::Unknown, 1..) => all.unknown_in_effect += 1,
            _ => {}
        }
        if *count > 1 {
            all.doubled(u64::from(count - 1), what);
        }
    }
}

fn all_accounts(plan: &Plan) -> Vec<String> {
    ["MGET".to_owned()].into_iter().chain((0..plan.accounts).map(account_key)).collect()
}

fn account_key(account: u64) -> String {
    format!("a:{account}")
}

fn journal_key(client: u64, part: usize) -> String {
    format!("j:{client}:{part}")
}

fn token(number: usize) -> String {
    format!("{number:08};")
}

fn number(reply: &Frame) -> Option<i64> {
    match reply {
        Frame::Bulk(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transfer_is_judged_by_what_was_said_of_it() {
        let transfer = |end| Transfer { from: 0, to: 1, amount: 5, end };
        let committed = transfer(End::Committed { at_ns: 42 });
        let transfers = [
            committed,
            committed,
            committed,
            transfer(End::Aborted),
            transfer(End::Aborted),
            transfer(End::Unknown),
            transfer(End::Unknown),
        ];
        let mut findings = Findings::default();
        judge_transfers(0, &transfers, &[1, 0, 3, 0, 1, 0, 1], &mut findings);
        assert_eq!(findings.lost, [42]);
        assert_eq!(findings.doubled, 2);
        assert_eq!(findings.unknown_in_effect, 1);
        assert_eq!(findings.anomalies["aborted, yet there"], 1);
    }

    #[test]
    fn a_total_that_is_not_what_was_paid_in_is_an_anomaly() {
        let plan = Plan { clients: 1, accounts: 2, seed: 1 };
        let reply = |one: &str, other: &str| Frame::Array(vec![Frame::Bulk(one.into()), Frame::Bulk(other.into())]);
        let mut findings = Findings::default();
        assert_eq!(findings.judge_total(&reply("900", "1100"), &plan, String::new), Some(vec![900, 1100]));
        assert!(findings.anomalies.is_empty());
        findings.judge_total(&reply("900", "1000"), &plan, String::new);
        assert_eq!(findings.anomalies["total not conserved"], 1);
        findings.judge_total(&Frame::Array(vec![Frame::Null, Frame::Null]), &plan, String::new);
        assert_eq!(findings.anomalies["account without a balance"], 1);
    }
}
