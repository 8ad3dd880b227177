//! A client that makes a backup, as `holdfast backup create` does, and looks at what it holds: the money of all
//! accounts at one moment.

use std::collections::BTreeSet;
use std::fmt;

use group::group_seed::GroupSeed;
use group::ids::{GroupId, NodeId};
use keyspace::{Keyspace, Layout, Moment, Str, Tuning, ValueRef};
use stdx::UnixMillis;

use super::{ACCOUNT_COUNT, Client, Expected, History, account_name};
use crate::DATABASES;
use crate::reply::Reply;

/// A backup being made.
#[derive(Debug, Default)]
pub(super) struct Copying {
    name: String,
    called: u64,
    group_count: u32,
    /// The group being read, and its chunks so far.
    group: u32,
    chunks: Vec<Vec<u8>>,
    sum: i64,
    account_count: u64,
    /// Where groups were cut, and at which moment.
    places: Vec<u64>,
    /// Groups that had gone by then: there is no part of them.
    gone: BTreeSet<u32>,
    moment: UnixMillis,
    tables: Tables,
}

/// What groups hold.
#[derive(Default)]
pub(crate) struct Tables(pub(crate) Vec<Keyspace>);

impl fmt::Debug for Tables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} groups", self.0.len())
    }
}

/// A backup that a second site may begin with.
#[derive(Debug)]
pub(crate) struct SiteCopy {
    /// The machine that made it, and when it was asked to.
    pub(crate) machine: usize,
    pub(crate) called: u64,
    pub(crate) tables: Tables,
    pub(crate) places: Vec<u64>,
    pub(crate) moment: UnixMillis,
}

impl Client {
    /// Begins a backup.
    pub(super) fn begin_copying(&mut self, now: u64, out: &mut Vec<u8>) {
        let name = format!("{:032x}", self.prng.draw());
        self.command(&[b"BACKUP", b"BEGIN", name.as_bytes()], Expected::BackupBegun, out);
        self.copying = Some(Copying { name, called: now, ..Copying::default() });
    }

    /// Goes on with it; false if there is none.
    pub(super) fn go_on_copying(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(Copying { name, group, chunks, .. }) = &self.copying else { return false };
        let (group, chunk) = (group.to_string(), chunks.len().to_string());
        let words = ["BACKUP", "READ", name, &group, &chunk].map(str::as_bytes);
        crate::reply::encode(&words, out);
        self.expected.push_back(Expected::BackupChunk);
        true
    }

    /// The server answered.
    pub(super) fn copied(&mut self, reply: &Reply, history: &mut History) -> Result<(), String> {
        let Some(copying) = &mut self.copying else { return Ok(()) };
        match reply {
            // The server may not be able to; nothing is promised then.
            Reply::Error(_) => {
                self.copying = None;
                history.refused_count += 1;
            }
            Reply::Array(Some(facts)) => {
                let [Reply::Integer(groups), _, Reply::Integer(moment), places @ ..] = &facts[..] else {
                    return Err(format!("BACKUP BEGIN answered {facts:?}"));
                };
                let (groups, moment) = (*groups, *moment);
                let place = |reply: &Reply| match reply {
                    Reply::Integer(place) => Some(*place),
                    _ => None,
                };
                let places: Vec<i64> = places.iter().filter_map(place).collect();
                copying.places = places.iter().map(|place| place.unsigned_abs()).collect();
                copying.gone = (0..).zip(places).filter(|(_, place)| *place < 0).map(|(group, _)| group).collect();
                copying.moment = UnixMillis(moment);
                copying.group_count = u32::try_from(groups).map_err(|_| "a strange number of groups".to_owned())?;
            }
            // So many percent have been written.
            Reply::Integer(0..=99) => {}
            Reply::Bulk(Some(chunk)) => copying.chunks.push(chunk.clone()),
            Reply::Bulk(None) => {
                copying.take_group()?;
                while copying.gone.contains(&copying.group) {
                    copying.take_group()?;
                }
                if copying.group == copying.group_count {
                    if copying.account_count != ACCOUNT_COUNT {
                        return Err(format!("a backup holds {} accounts", copying.account_count));
                    }
                    history.audits.push((copying.called, copying.sum));
                    history.backup_count += 1;
                    let Copying { called, tables, places, moment, .. } =
                        self.copying.take().expect("it has just ended");
                    if history.site_wants_copy {
                        let machine = self.node;
                        history.site_copy = Some(SiteCopy { machine, called, tables, places, moment });
                    }
                }
            }
            other => return Err(format!("to BACKUP the server said {other:?}")),
        }
        Ok(())
    }
}

impl Copying {
    /// All of a group has come: what do its accounts hold?
    fn take_group(&mut self) -> Result<(), String> {
        let keyspace = Keyspace::new(keyspace::Options {
            databases: DATABASES,
            hash_seed: 1,
            layout: Layout::Slots,
            tuning: Tuning::default(),
        });
        let mut seed = GroupSeed::new(GroupId(self.group), NodeId(1), keyspace);
        for chunk in std::mem::take(&mut self.chunks) {
            seed.restore(&chunk).map_err(|corrupt| format!("a chunk of a backup: {corrupt}"))?;
        }
        let moment = Moment { unix: UnixMillis(0), seed: 0 };
        for account in 0..ACCOUNT_COUNT {
            let name = account_name(account);
            let view = seed.keyspace.view(0, moment);
            let Some(entry) = view.peek(name.as_bytes()) else { continue };
            let ValueRef::String(Str::Integer(balance)) = entry.value() else {
                return Err(format!("{name} holds {:?} in a backup", entry.value()));
            };
            self.sum += balance;
            self.account_count += 1;
        }
        self.tables.0.push(seed.keyspace);
        self.group += 1;
        Ok(())
    }
}
