//! Clients that write whatever happens to the servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use stdx::Prng;

use super::Client;

/// One change by a writer, of this number; none if the connection is gone.
pub type Change = fn(client: &mut Client, prng: &mut Prng, writer: u64) -> Option<()>;

/// Writers that go on whatever happens to the servers.
pub struct Writers {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Writers {
    /// Starts so many, each of which connects to one of the ports and pauses behind each change.
    pub fn start(ports: &[u16], count: u64, pause: Duration, change: Change) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let write = |nth: u64| {
            let (ports, is_over) = (ports.to_vec(), Arc::clone(&is_over));
            thread::spawn(move || {
                let (mut prng, mut count) = (Prng::new(nth + 1), 0);
                while !is_over.load(Ordering::Relaxed) {
                    let port = ports[prng.below(ports.len() as u64) as usize];
                    let Some(mut client) = Client::try_connect(port) else {
                        thread::sleep(Duration::from_millis(10));
                        continue;
                    };
                    while !is_over.load(Ordering::Relaxed) && change(&mut client, &mut prng, nth).is_some() {
                        count += 1;
                        thread::sleep(pause);
                    }
                }
                count
            })
        };
        let threads = (0..count).map(write).collect();
        Self { is_over, threads }
    }

    /// Ends them; how many changes they have made.
    pub fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|writer| writer.join().expect("a writer")).sum()
    }
}
