//! What a core counts.

/// Counters of one core since its start, and what they are derived from. Nothing replicated depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections opened.
    pub connection_count: u64,
    /// Commands executed, those inside transactions included.
    pub command_count: u64,
    /// Bytes received from clients.
    pub input_bytes: u64,
    /// Bytes sent to clients.
    pub output_bytes: u64,
    /// Requests answered with an error before they were executed.
    pub rejected_call_count: u64,
    /// Error replies, by their code.
    pub errors: std::collections::BTreeMap<String, u64>,
    /// Messages of other nodes that were none.
    pub malformed_peer_count: u64,
    /// Reads that found their key, and that did not.
    pub hit_count: u64,
    /// See above.
    pub miss_count: u64,
}

impl Statistics {
    /// Counts an error reply by its code, the first word of its text.
    pub fn count_error(&mut self, text: &str) {
        const CODES_MAX: usize = 128;
        let code = text.split(' ').next().unwrap_or_default();
        if let Some(count) = self.errors.get_mut(code) {
            *count += 1;
        } else if self.errors.len() < CODES_MAX {
            self.errors.insert(code.to_owned(), 1);
        }
    }
}
