//! Bounds of JSON documents and of what is asked of them.

/// Arrays and objects lie fewer than this many within each other, as in RedisJSON.
pub(crate) const DEPTH_MAX: usize = 128;

/// Bytes of the largest document, as JSON.DEBUG MEMORY counts them: what the largest string takes.
pub(crate) const DOCUMENT_BYTES_MAX: usize = 512 << 20;

/// Bytes of the longest text that an answer holds.
pub(crate) const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Bytes of the largest document that is kept packed in the record of its key: a reader takes it apart each time.
pub(crate) const PACKED_BYTES_MAX: usize = 1024;

/// Values that one path may look at. A path with several `..` looks at a value once for each way that leads there.
pub(crate) const VISITS_MAX: usize = 1 << 25;

/// Parentheses and filters that may lie within each other in a path.
pub(crate) const NESTING_MAX: usize = 16;

/// Bytes that a pattern of a path may take when it has been compiled.
pub(crate) const PATTERN_BYTES_MAX: usize = 1 << 20;
