//! How many different things were seen, within a percent, in twelve kilobytes: a HyperLogLog as Redis keeps it in a
//! string, byte for byte.
//!
//! An element is hashed to 64 bits. The low 14 choose one of 16,384 registers; the number of zeros at the low end of
//! the rest, plus one, is the element's *rank*; a register keeps the highest rank it has met. A high rank is rare, so
//! it tells that many elements were seen (Flajolet, Fusy, Gandouet, Meunier: "HyperLogLog", 2007). The estimate is
//! Ertl's ("New cardinality estimation algorithms for HyperLogLog sketches", 2017), which needs no correction at either
//! end.
//!
//! ```text
//! "HYLL" │ form u8 │ 3 unused │ the last estimate u64, its highest bit set if it is out of date │ registers
//!
//! dense   six bits a register, the lowest first
//! sparse  runs of equal registers
//!         00nnnnnn           n + 1 registers are 0
//!         01nnnnnn nnnnnnnn  n + 1 registers are 0
//!         1vvvvvnn           n + 1 registers are v + 1
//! ```
//!
//! Anyone who has access to the key may have written anything behind the header of a sparse one; that its runs are as
//! many registers as there are is found out by those who read them all.

use command::Refusal;

/// Number of registers.
pub(crate) const REGISTERS: usize = 1 << REGISTER_BITS;

/// Bits of the hash that choose a register.
const REGISTER_BITS: u32 = 14;

/// Bits of the hash in which zeros are counted.
const RANK_BITS: u32 = 64 - REGISTER_BITS;

/// Highest rank of an element.
const RANK_MAX: usize = RANK_BITS as usize + 1;

const MAGIC: &[u8; 4] = b"HYLL";
const HEADER_BYTES: usize = 16;
const FORM_AT: usize = 4;
const ESTIMATE_AT: usize = 8;
/// In the last byte of the estimate: it is out of date.
const IS_STALE: u8 = 0x80;

const DENSE: u8 = 0;
const SPARSE: u8 = 1;

const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * 6 / 8;

/// Longest runs, by the bits that there are for their lengths.
const SHORT_ZEROS_MAX: usize = 1 << 6;
const LONG_ZEROS_MAX: usize = 1 << 14;
const VALUES_MAX: usize = 1 << 2;
/// Greatest value that a sparse register can have.
const SPARSE_VALUE_MAX: u8 = 1 << 5;

/// How a sketch lies in its string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Dense,
    Sparse,
}

impl Form {
    /// As PFDEBUG calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Sparse => "sparse",
        }
    }
}

/// An element as registers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    register: usize,
    rank: u8,
}

impl Trace {
    pub(crate) fn of(element: &[u8]) -> Self {
        let hash = murmur(element);
        let rest = hash >> REGISTER_BITS | 1 << RANK_BITS;
        Self { register: hash as usize % REGISTERS, rank: rest.trailing_zeros() as u8 + 1 }
    }
}

/// A string that has the header of a sketch.
#[derive(Clone, Copy)]
pub(crate) struct Sketch<'a> {
    bytes: &'a [u8],
    form: Form,
}

impl<'a> Sketch<'a> {
    /// # Errors
    /// [`Refusal::NOT_A_SKETCH`] if the string is none.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let form = match bytes.get(FORM_AT) {
            Some(&DENSE) if bytes.len() == DENSE_BYTES => Form::Dense,
            Some(&SPARSE) if bytes.len() >= HEADER_BYTES => Form::Sparse,
            _ => return Err(Refusal::NOT_A_SKETCH),
        };
        if bytes.starts_with(MAGIC) { Ok(Self { bytes, form }) } else { Err(Refusal::NOT_A_SKETCH) }
    }

    pub(crate) fn form(self) -> Form {
        self.form
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.bytes.to_vec()
    }

    /// The last estimate, if nothing has changed since.
    pub(crate) fn estimate(self) -> Option<u64> {
        let bytes = &self.bytes[ESTIMATE_AT..HEADER_BYTES];
        let number = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        (bytes[7] & IS_STALE == 0).then_some(number)
    }

    /// A new estimate.
    ///
    /// # Errors
    /// [`Refusal::CORRUPT_SKETCH`].
    pub(crate) fn count(self) -> Result<u64, Refusal> {
        let mut histogram = [0; 64];
        match self.form {
            Form::Dense => {
                for group in self.bytes[HEADER_BYTES..].chunks_exact(3) {
                    let four = u32::from_le_bytes([group[0], group[1], group[2], 0]);
                    (0..4).for_each(|nth| histogram[(four >> (6 * nth) & 0x3F) as usize] += 1);
                }
            }
            Form::Sparse => {
                self.runs().for_each(|run| histogram[usize::from(run.value)] += run.len);
                if histogram.iter().sum::<usize>() != REGISTERS {
                    return Err(Refusal::CORRUPT_SKETCH);
                }
            }
        }
        Ok(estimate(&histogram))
    }

    /// What a register of a dense sketch holds.
    fn dense_register(self, register: usize) -> u8 {
        dense_get(&self.bytes[HEADER_BYTES..], register)
    }

    /// Raises registers to what they are here.
    ///
    /// # Errors
    /// [`Refusal::CORRUPT_SKETCH`].
    pub(crate) fn merge_into(self, registers: &mut Registers) -> Result<(), Refusal> {
        match self.form {
            Form::Dense => {
                let groups = self.bytes[HEADER_BYTES..].chunks_exact(3).zip(registers.0.chunks_exact_mut(4));
                for (group, registers) in groups {
                    let four = u32::from_le_bytes([group[0], group[1], group[2], 0]);
                    for (nth, register) in registers.iter_mut().enumerate() {
                        *register = (*register).max((four >> (6 * nth) & 0x3F) as u8);
                    }
                }
                Ok(())
            }
            Form::Sparse => self.for_each_run(|from, run| {
                registers.0[from..from + run.len]
                    .iter_mut()
                    .for_each(|register| *register = (*register).max(run.value));
            }),
        }
    }

    /// Calls `visit` with every run of a sparse sketch that is not of zeros, and where it begins.
    fn for_each_run(self, mut visit: impl FnMut(usize, Run)) -> Result<(), Refusal> {
        let mut from = 0;
        for run in self.runs() {
            if run.value > 0 && from + run.len <= REGISTERS {
                visit(from, run);
            }
            from += run.len;
        }
        if from == REGISTERS { Ok(()) } else { Err(Refusal::CORRUPT_SKETCH) }
    }

    /// The runs of a sparse sketch as PFDEBUG DECODE shows them.
    pub(crate) fn describe(self) -> String {
        let words = self.runs().map(|run| match run {
            Run { value: 0, len, width: 1 } => format!("z:{len}"),
            Run { value: 0, len, .. } => format!("Z:{len}"),
            Run { value, len, .. } => format!("v:{value},{len}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn runs(self) -> impl Iterator<Item = Run> + use<'a> {
        let mut rest = &self.bytes[HEADER_BYTES..];
        std::iter::from_fn(move || {
            let run = Run::first(rest)?;
            rest = rest.get(run.width..).unwrap_or_default();
            Some(run)
        })
    }
}

/// A run of registers in a sparse sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    value: u8,
    /// Registers.
    len: usize,
    /// Bytes.
    width: usize,
}

impl Run {
    /// The run with which `bytes` begin. Of one that is cut off, the missing byte is taken for 0.
    #[inline]
    fn first(bytes: &[u8]) -> Option<Self> {
        let head = *bytes.first()?;
        let number = usize::from(head & 0x3F);
        Some(match head >> 6 {
            0 => Self { value: 0, len: number + 1, width: 1 },
            1 => {
                let low = bytes.get(1).copied().unwrap_or(0);
                Self { value: 0, len: (number << 8 | usize::from(low)) + 1, width: 2 }
            }
            _ => Self { value: (head >> 2 & 0x1F) + 1, len: usize::from(head & 3) + 1, width: 1 },
        })
    }

    /// Appends the shortest run of this kind; nothing if it would have no registers.
    fn put(value: u8, len: usize, out: &mut Vec<u8>) {
        match (value, len) {
            (_, 0) => {}
            (0, 1..=SHORT_ZEROS_MAX) => out.push(len as u8 - 1),
            (0, _) => out.extend_from_slice(&(0x4000 | (len - 1) as u16).to_be_bytes()),
            (_, _) => out.push(0x80 | (value - 1) << 2 | (len - 1) as u8),
        }
    }
}

/// Every register in a byte of its own.
pub(crate) struct Registers(Box<[u8]>);

impl Registers {
    /// All 0.
    pub(crate) fn new() -> Self {
        Self(vec![0; REGISTERS].into_boxed_slice())
    }

    pub(crate) fn count(&self) -> u64 {
        let mut histogram = [0; 64];
        self.0.iter().for_each(|&register| histogram[usize::from(register & 0x3F)] += 1);
        estimate(&histogram)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().copied()
    }

    /// As traces that would leave these registers behind.
    pub(crate) fn traces(&self) -> impl Iterator<Item = Trace> + '_ {
        let pairs = self.0.iter().enumerate().filter(|(_, rank)| **rank > 0);
        pairs.map(|(register, &rank)| Trace { register, rank })
    }
}

/// A sketch of nothing.
pub(crate) fn empty() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(SPARSE);
    bytes.resize(HEADER_BYTES, 0);
    Run::put(0, LONG_ZEROS_MAX, &mut bytes);
    bytes
}

/// Which of these traces would change a dense sketch.
pub(crate) fn fresh_in_dense(sketch: Sketch<'_>, traces: impl Iterator<Item = Trace>) -> Vec<Trace> {
    assert_eq!(sketch.form, Form::Dense);
    traces.filter(|trace| sketch.dense_register(trace.register) < trace.rank).collect()
}

/// Takes in what [`fresh_in_dense`] has found.
pub(crate) fn add_to_dense(bytes: &mut [u8], traces: &[Trace]) {
    let registers = &mut bytes[HEADER_BYTES..];
    for trace in traces {
        let rank = trace.rank.max(dense_get(registers, trace.register));
        dense_set(registers, trace.register, rank);
    }
}

/// Notes an estimate.
pub(crate) fn keep_estimate(bytes: &mut [u8], number: u64) {
    bytes[ESTIMATE_AT..HEADER_BYTES].copy_from_slice(&number.to_le_bytes());
}

/// Notes that the estimate is out of date.
pub(crate) fn forget_estimate(bytes: &mut [u8]) {
    bytes[HEADER_BYTES - 1] |= IS_STALE;
}

/// Takes an element in; true if that changed a register. `bytes` must be those of a [`Sketch`]; a sparse one becomes
/// dense rather than longer than `sparse_bytes_max`.
///
/// # Errors
/// [`Refusal::CORRUPT_SKETCH`], with nothing changed.
pub(crate) fn add(bytes: &mut Vec<u8>, trace: Trace, sparse_bytes_max: usize) -> Result<bool, Refusal> {
    if bytes[FORM_AT] == DENSE {
        let registers = &mut bytes[HEADER_BYTES..];
        let is_higher = dense_get(registers, trace.register) < trace.rank;
        if is_higher {
            dense_set(registers, trace.register, trace.rank);
        }
        return Ok(is_higher);
    }
    match sparse_set(bytes, trace, sparse_bytes_max)? {
        Fit::Same => Ok(false),
        Fit::Set => Ok(true),
        Fit::TooLarge => {
            to_dense(bytes)?;
            dense_set(&mut bytes[HEADER_BYTES..], trace.register, trace.rank);
            Ok(true)
        }
    }
}

/// Makes a sketch dense; false if it was.
///
/// # Errors
/// [`Refusal::CORRUPT_SKETCH`], with nothing changed.
pub(crate) fn to_dense(bytes: &mut Vec<u8>) -> Result<bool, Refusal> {
    let sketch = Sketch::new(bytes)?;
    if sketch.form == Form::Dense {
        return Ok(false);
    }
    let mut dense = bytes[..HEADER_BYTES].to_vec();
    dense[FORM_AT] = DENSE;
    dense.resize(DENSE_BYTES, 0);
    let registers = &mut dense[HEADER_BYTES..];
    sketch.for_each_run(|from, run| (from..from + run.len).for_each(|nth| dense_set(registers, nth, run.value)))?;
    *bytes = dense;
    Ok(true)
}

fn dense_get(registers: &[u8], nth: usize) -> u8 {
    let (byte, shift) = (nth * 6 / 8, nth * 6 % 8);
    let high = registers.get(byte + 1).copied().unwrap_or(0);
    (u16::from_le_bytes([registers[byte], high]) >> shift) as u8 & 0x3F
}

fn dense_set(registers: &mut [u8], nth: usize, value: u8) {
    let (byte, shift) = (nth * 6 / 8, nth * 6 % 8);
    let high = registers.get(byte + 1).copied().unwrap_or(0);
    let word = u16::from_le_bytes([registers[byte], high]) & !(0x3F << shift) | u16::from(value) << shift;
    let [low, high] = word.to_le_bytes();
    registers[byte] = low;
    if let Some(place) = registers.get_mut(byte + 1) {
        *place = high;
    }
}

/// What became of an attempt to raise a register of a sparse sketch.
enum Fit {
    /// It is as high already.
    Same,
    Set,
    /// The value or the string would be too large.
    TooLarge,
}

fn sparse_set(bytes: &mut Vec<u8>, trace: Trace, bytes_max: usize) -> Result<Fit, Refusal> {
    if trace.rank > SPARSE_VALUE_MAX {
        return Ok(Fit::TooLarge);
    }
    let (mut at, mut first, mut previous) = (HEADER_BYTES, 0, None);
    let run = loop {
        let run =
            Run::first(&bytes[at..]).filter(|run| at + run.width <= bytes.len()).ok_or(Refusal::CORRUPT_SKETCH)?;
        if trace.register < first + run.len {
            break run;
        }
        previous = Some(at);
        at += run.width;
        first += run.len;
    };
    if run.value >= trace.rank {
        return Ok(Fit::Same);
    }
    let mut parts = Vec::with_capacity(5);
    Run::put(run.value, trace.register - first, &mut parts);
    Run::put(trace.rank, 1, &mut parts);
    Run::put(run.value, first + run.len - 1 - trace.register, &mut parts);
    if parts.len() > run.width && bytes.len() + parts.len() - run.width > bytes_max {
        return Ok(Fit::TooLarge);
    }
    bytes.splice(at..at + run.width, parts);
    join_runs(bytes, previous.unwrap_or(HEADER_BYTES));
    forget_estimate(bytes);
    Ok(Fit::Set)
}

/// Joins neighbours of equal value, looking at no more runs than a change can have touched.
fn join_runs(bytes: &mut Vec<u8>, from: usize) {
    const LOOKS: usize = 5;
    let mut at = from;
    for _ in 0..LOOKS {
        let Some(run) = Run::first(&bytes[at.min(bytes.len())..]) else { return };
        match Run::first(&bytes[(at + run.width).min(bytes.len())..]) {
            Some(next) if run.value > 0 && next.value == run.value && run.len + next.len <= VALUES_MAX => {
                let mut joined = Vec::with_capacity(1);
                Run::put(run.value, run.len + next.len, &mut joined);
                bytes.splice(at..at + 2, joined);
            }
            _ => at += run.width,
        }
    }
}

/// How many elements leave behind so many registers of each value.
fn estimate(histogram: &[usize; 64]) -> u64 {
    /// 1 / (2 ln 2), the bias for infinitely many registers.
    const BIAS: f64 = 0.721_347_520_444_481_7;
    let registers = REGISTERS as f64;
    let mut sum = registers * tau((registers - histogram[RANK_MAX] as f64) / registers);
    for &count in histogram[1..RANK_MAX].iter().rev() {
        sum += count as f64;
        sum *= 0.5;
    }
    sum += registers * sigma(histogram[0] as f64 / registers);
    (BIAS * registers * registers / sum).round() as u64
}

/// `x + Σ x^(2^k) · 2^(k-1)`: what registers that are still 0 add.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut factor, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

/// `(1 - x - Σ (1 - x^(2^-k))² · 2^-k) / 3`: what registers that can rise no more add.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut factor, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}

/// MurmurHash2 of 64 bits (Austin Appleby, version A), with the seed that Redis gives it.
fn murmur(bytes: &[u8]) -> u64 {
    const SEED: u64 = 0xADC8_3B19;
    crate::sketch::hash::hash_64(bytes, SEED)
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;

    /// The twin: a byte a register, and no runs.
    fn add_plainly(registers: &mut Registers, element: &[u8]) -> bool {
        let Trace { register, rank } = Trace::of(element);
        let is_higher = registers.0[register] < rank;
        registers.0[register] = registers.0[register].max(rank);
        is_higher
    }

    fn registers_of(bytes: &[u8]) -> Vec<u8> {
        let mut registers = Registers::new();
        Sketch::new(bytes).unwrap().merge_into(&mut registers).unwrap();
        registers.0.to_vec()
    }

    #[test]
    fn both_forms_hold_what_plain_registers_hold() {
        let mut prng = Prng::new(1);
        for sparse_bytes_max in [0, 100, 3000, 15_000] {
            let (mut sketch, mut dense, mut plain) = (empty(), empty(), Registers::new());
            assert_eq!(to_dense(&mut dense), Ok(true));
            for round in 0..6_000 {
                let element = prng.draw().to_le_bytes();
                let is_higher = add_plainly(&mut plain, &element);
                assert_eq!(add(&mut sketch, Trace::of(&element), sparse_bytes_max), Ok(is_higher));
                assert_eq!(add(&mut dense, Trace::of(&element), sparse_bytes_max), Ok(is_higher));
                assert!(sketch.len() == DENSE_BYTES || sketch.len() <= sparse_bytes_max.max(18));
                if round % 500 == 0 {
                    assert_eq!(registers_of(&sketch), *plain.0);
                    assert_eq!(registers_of(&dense), *plain.0);
                    assert_eq!(Sketch::new(&sketch).unwrap().count(), Ok(plain.count()));
                    assert_eq!(Sketch::new(&dense).unwrap().count(), Ok(plain.count()));
                }
            }
        }
    }

    #[test]
    fn estimates_are_near_the_truth() {
        let mut prng = Prng::new(2);
        let mut plain = Registers::new();
        let mut count = 0u64;
        for goal in [0, 1, 10, 100, 1_000, 10_000, 100_000, 500_000] {
            while count < goal {
                add_plainly(&mut plain, &prng.draw().to_le_bytes());
                count += 1;
            }
            // Three times the standard error of 1.04 / √registers.
            let error = plain.count().abs_diff(count) as f64;
            assert!(error <= 3.0 * 1.04 / 128.0 * count as f64 + 0.5, "{} for {count}", plain.count());
        }
    }

    #[test]
    fn a_register_at_its_end_counts() {
        let mut full = [0; 64];
        full[RANK_MAX] = REGISTERS;
        assert_eq!(estimate(&full), u64::MAX, "no number is great enough");
        full[RANK_MAX] = 1;
        full[1] = REGISTERS - 1;
        assert!(estimate(&full) > REGISTERS as u64);
    }

    #[test]
    fn no_bytes_make_a_sketch_panic() {
        let mut prng = Prng::new(3);
        let mut accepted = 0;
        for _ in 0..3_000 {
            let mut bytes = empty();
            for _ in 0..prng.below(300) {
                add(&mut bytes, Trace::of(&prng.draw().to_le_bytes()), 3000).unwrap();
            }
            for _ in 0..1 + prng.below(3) {
                let at = prng.below(bytes.len() as u64) as usize;
                match prng.below(8) {
                    0 => bytes.truncate(at),
                    1 => bytes.push(prng.draw() as u8),
                    _ => bytes[at] = prng.draw() as u8,
                }
                if bytes.is_empty() {
                    break;
                }
            }
            let Ok(sketch) = Sketch::new(&bytes) else { continue };
            accepted += usize::from(sketch.count().is_ok());
            let mut registers = Registers::new();
            _ = sketch.merge_into(&mut registers);
            _ = registers.count();
            _ = sketch.describe();
            for _ in 0..10 {
                _ = add(&mut bytes, Trace::of(&prng.draw().to_le_bytes()), 3000);
            }
            _ = to_dense(&mut bytes);
        }
        assert!((1..3_000).contains(&accepted), "{accepted}");
    }
}
