//! What a link carries, made smaller: one Zstandard stream for as long as the connection lasts, so that what has been
//! said before, keys above all, costs next to nothing when it is said again. It is flushed when nothing more waits.

use std::io;

use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

/// What either end remembers of the stream, as a power of two: 1 MiB. It costs either end that much and some more.
const WINDOW_LOG: u32 = 20;

/// Bytes compressed, or brought back, at a time.
pub const PIECE_BYTES: usize = 64 << 10;

/// The sending end.
pub struct Compressor {
    encoder: Encoder<'static>,
    /// Of these, `taken` have been sent.
    packed: Vec<u8>,
    taken: usize,
}

impl Compressor {
    /// One that works so hard, from 1 to 19.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(level: i32) -> io::Result<Self> {
        let mut encoder = Encoder::new(level)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        Ok(Self { encoder, packed: Vec::new(), taken: 0 })
    }

    /// What has been made and not been sent.
    pub fn ready(&self) -> &[u8] {
        &self.packed[self.taken..]
    }

    /// So much of it has been sent.
    pub fn sent(&mut self, count: usize) {
        self.taken += count;
    }

    /// Takes more, when nothing is ready; with `is_last` nothing stays behind.
    ///
    /// # Errors
    /// Those of the library, of which none is expected.
    pub fn pack(&mut self, bytes: &[u8], is_last: bool) -> io::Result<()> {
        self.packed.clear();
        self.taken = 0;
        let mut input = InBuffer::around(bytes);
        while input.pos() < bytes.len() {
            self.step(|encoder, output| encoder.run(&mut input, output))?;
        }
        while is_last && self.step(Operation::flush)? > 0 {}
        Ok(())
    }

    fn step<R>(
        &mut self,
        act: impl FnOnce(&mut Encoder<'static>, &mut OutBuffer<'_, [u8]>) -> io::Result<R>,
    ) -> io::Result<R> {
        let before = self.packed.len();
        self.packed.resize(before + PIECE_BYTES, 0);
        let mut output = OutBuffer::around(&mut self.packed[before..]);
        let result = act(&mut self.encoder, &mut output);
        let made = output.pos();
        self.packed.truncate(before + made);
        result
    }
}

/// The receiving end.
pub struct Decompressor {
    decoder: Decoder<'static>,
    piece: Vec<u8>,
}

impl Decompressor {
    /// One for a stream that begins.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new() -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(Self { decoder, piece: vec![0; PIECE_BYTES] })
    }

    /// Brings back up to [`PIECE_BYTES`] of what has come and appends them to `out`. How much of `bytes` it took, and
    /// whether it must be called again before there are more: few bytes may stand for very many.
    ///
    /// # Errors
    /// If that is no such stream.
    pub fn unpack(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<(usize, bool)> {
        let mut input = InBuffer::around(bytes);
        let mut output = OutBuffer::around(&mut self.piece[..]);
        self.decoder.run(&mut input, &mut output)?;
        let (taken, made) = (input.pos(), output.pos());
        out.extend_from_slice(&self.piece[..made]);
        Ok((taken, taken < bytes.len() || made == PIECE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack_all(decompressor: &mut Decompressor, bytes: &[u8]) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        loop {
            let before = out.len();
            let (taken, has_more) = decompressor.unpack(&bytes[at..], &mut out).expect("a sound stream");
            assert!(out.len() - before <= PIECE_BYTES);
            at += taken;
            if !has_more {
                assert_eq!(at, bytes.len());
                return out;
            }
        }
    }

    #[test]
    fn what_is_flushed_comes_out_at_once_and_what_was_said_before_costs_little() {
        let mut compressor = Compressor::new(3).expect("memory");
        let mut decompressor = Decompressor::new().expect("memory");
        let mut sizes = Vec::new();
        for round in 0..50u32 {
            let text: String = (0..20).map(|n| format!("SET customer:{:06}:balance {round}\r\n", n * 37)).collect();
            compressor.pack(text.as_bytes(), true).expect("packed");
            sizes.push(compressor.ready().len());
            assert_eq!(unpack_all(&mut decompressor, compressor.ready()), text.as_bytes());
        }
        assert!(sizes[49] * 8 < 20 * 30, "{sizes:?}");
    }

    #[test]
    fn a_piece_that_is_not_flushed_comes_with_the_next() {
        let mut compressor = Compressor::new(1).expect("memory");
        let mut decompressor = Decompressor::new().expect("memory");
        let mut out = Vec::new();
        for (piece, is_last) in [(&b"one "[..], false), (b"two ", false), (b"three", true)] {
            compressor.pack(piece, is_last).expect("packed");
            out.extend(unpack_all(&mut decompressor, compressor.ready()));
        }
        assert_eq!(out, b"one two three");
    }

    #[test]
    fn little_that_stands_for_much_is_brought_back_piece_by_piece() {
        let mut compressor = Compressor::new(3).expect("memory");
        let zeros = vec![0; 8 << 20];
        compressor.pack(&zeros, true).expect("packed");
        assert!(compressor.ready().len() < 4 << 10);
        let mut decompressor = Decompressor::new().expect("memory");
        assert_eq!(unpack_all(&mut decompressor, compressor.ready()), zeros);
    }

    #[test]
    fn what_is_no_such_stream_is_an_error() {
        let mut decompressor = Decompressor::new().expect("memory");
        assert!(decompressor.unpack(b"GET / HTTP/1.1\r\n", &mut Vec::new()).is_err());
    }
}
