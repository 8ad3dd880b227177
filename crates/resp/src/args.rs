//! The words of one request, as spans of the buffer that holds them.

/// Half-open range of bytes in a buffer of at most 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset one past the last byte.
    pub end: u32,
}

/// A request's words: the command's name, then its arguments. Copying it copies no byte.
///
/// The words may lie in a socket's input buffer or in a log entry; who reads them cannot tell.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    buffer: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// Words at `spans` of `buffer`. Every span must lie inside `buffer`.
    pub fn new(buffer: &'a [u8], spans: &'a [Span]) -> Self {
        Self { buffer, spans }
    }

    /// Number of words, the command's name included.
    #[inline]
    pub fn len(self) -> usize {
        self.spans.len()
    }

    /// True if there is not even a name.
    pub fn is_empty(self) -> bool {
        self.spans.is_empty()
    }

    /// The word at `index`; 0 is the command's name.
    ///
    /// # Panics
    /// If there are not that many words: arity is checked before a handler runs.
    #[inline]
    pub fn at(self, index: usize) -> &'a [u8] {
        let Span { start, end } = self.spans[index];
        &self.buffer[start as usize..end as usize]
    }

    /// The word at `index`, if there are that many.
    #[inline]
    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| &self.buffer[span.start as usize..span.end as usize])
    }

    /// The words from `first` on, so that a subcommand can count from its own name.
    ///
    /// # Panics
    /// If there are fewer than `first` words.
    pub fn from(self, first: usize) -> Self {
        Self { buffer: self.buffer, spans: &self.spans[first..] }
    }

    /// All words in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + 'a {
        self.spans.iter().map(move |span| &self.buffer[span.start as usize..span.end as usize])
    }

    /// Bytes in all words together.
    pub fn byte_count(self) -> usize {
        self.spans.iter().map(|span| (span.end - span.start) as usize).sum()
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}
