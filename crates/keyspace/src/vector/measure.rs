//! How vectors are kept, and how far two of them are apart.
//!
//! A vector is kept as a direction, of length one, and its former length. A direction is numbers of 32 bits, or bytes
//! and the largest magnitude that 127 stands for, or a bit for each number that is above zero. The distance of two
//! directions is one less their cosine: 0 for the same, 2 for opposite ones.
//!
//! Sums are taken in an order that is written down here, and nothing is fused: so all machines come to the same, and
//! a compiler may still do many numbers in one step.

/// Most dimensions of a vector.
pub(crate) const DIMENSIONS_MAX: usize = 1 << 16;

/// The magnitude that the largest number of a direction has as a byte.
const STEPS: f32 = 127.0;

/// How directions are kept. The numbers are those of Redis's files, and of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantization {
    /// Four bytes for each dimension.
    Float = 0,
    /// A byte for each dimension.
    Byte = 1,
    /// A bit for each dimension.
    Bit = 2,
}

impl Quantization {
    pub(crate) fn of(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Float),
            1 => Some(Self::Byte),
            2 => Some(Self::Bit),
            _ => None,
        }
    }

    /// What Redis calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "f32",
            Self::Byte => "int8",
            Self::Bit => "bin",
        }
    }

    /// Bytes of a direction.
    pub(crate) fn bytes(self, dimensions: usize) -> usize {
        match self {
            Self::Float => 4 * dimensions,
            Self::Byte => dimensions,
            Self::Bit => dimensions.div_ceil(64) * 8,
        }
    }
}

/// A vector as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Encoded {
    pub(crate) direction: Vec<u8>,
    /// What 127 stands for in a direction of bytes; 0 in others.
    pub(crate) range: f32,
    /// How long the vector was.
    pub(crate) length: f32,
}

/// Encodes a vector of finite numbers.
pub(crate) fn encode(vector: &[f32], quantization: Quantization) -> Encoded {
    let length = length_of(vector);
    let unit = |number: f32| if length > 0.0 { number / length } else { 0.0 };
    let (direction, range) = match quantization {
        Quantization::Float => (vector.iter().flat_map(|number| unit(*number).to_le_bytes()).collect(), 0.0),
        Quantization::Byte => {
            let range = vector.iter().fold(0.0f32, |most, number| most.max(unit(*number).abs()));
            let step = |number: &f32| if range > 0.0 { (unit(*number) / range * STEPS).round() as i8 as u8 } else { 0 };
            (vector.iter().map(step).collect(), range)
        }
        Quantization::Bit => {
            let mut bits = vec![0; quantization.bytes(vector.len())];
            for (place, _) in vector.iter().enumerate().filter(|(_, number)| **number > 0.0) {
                bits[place / 8] |= 1 << (place % 8);
            }
            (bits, 0.0)
        }
    };
    Encoded { direction, range, length }
}

/// The length of a vector, as far as a number of 32 bits can hold it.
fn length_of(vector: &[f32]) -> f32 {
    let square: f64 = vector.iter().map(|number| f64::from(*number) * f64::from(*number)).sum();
    (square.sqrt() as f32).min(f32::MAX)
}

/// The vector that was encoded, roughly.
pub(crate) fn decode(direction: &[u8], range: f32, length: f32, quantization: Quantization, len: usize) -> Vec<f32> {
    match quantization {
        Quantization::Float => numbers(direction).map(|number| number * length).collect(),
        Quantization::Byte => direction.iter().map(|&step| f32::from(step as i8) / STEPS * range * length).collect(),
        Quantization::Bit => {
            (0..len).map(|place| if direction[place / 8] >> (place % 8) & 1 == 1 { 1.0 } else { -1.0 }).collect()
        }
    }
}

/// Numbers of 32 bits, little-endian, one behind the other.
pub(crate) fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// A direction with its range, borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) range: f32,
}

/// How far two directions are apart: from 0 to 2.
#[inline]
pub(crate) fn distance(left: Direction<'_>, right: Direction<'_>, quantization: Quantization, len: usize) -> f32 {
    let distance = match quantization {
        Quantization::Float => 1.0 - dot_floats(left.bytes, right.bytes),
        Quantization::Byte if left.range == 0.0 || right.range == 0.0 => 1.0,
        Quantization::Byte => {
            1.0 - dot_bytes(left.bytes, right.bytes) as f32 * ((left.range / STEPS) * (right.range / STEPS))
        }
        Quantization::Bit => differing_bits(left.bytes, right.bytes) as f32 * 2.0 / len as f32,
    };
    // What a file of another maker says may be no number; and zero has one sign.
    if distance.is_nan() { 1.0 } else { distance.clamp(0.0, 2.0) + 0.0 }
}

/// Numbers that are summed side by side.
const LANES: usize = 16;

#[inline]
fn dot_floats(left: &[u8], right: &[u8]) -> f32 {
    let (left, right) = (left.as_chunks::<4>().0, right.as_chunks::<4>().0);
    let ((lefts, left), (rights, right)) = (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    let mut sums = [0.0f32; LANES];
    for (left, right) in lefts.iter().zip(rights) {
        for lane in 0..LANES {
            sums[lane] += f32::from_le_bytes(left[lane]) * f32::from_le_bytes(right[lane]);
        }
    }
    let rest = left.iter().zip(right).map(|(left, right)| f32::from_le_bytes(*left) * f32::from_le_bytes(*right));
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

/// At most 2¹⁶ products of up to 2¹⁴ each.
#[inline]
fn dot_bytes(left: &[u8], right: &[u8]) -> i32 {
    left.iter().zip(right).map(|(&left, &right)| i32::from(left as i8) * i32::from(right as i8)).sum()
}

#[inline]
fn differing_bits(left: &[u8], right: &[u8]) -> u32 {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    left.chunks_exact(8).zip(right.chunks_exact(8)).map(|(left, right)| (word(left) ^ word(right)).count_ones()).sum()
}

/// Makes fewer dimensions of a vector: each a sum of all, of which about half are taken away. Which ones follows from
/// the numbers of both dimensions, as in Redis: these are rows of a Hadamard matrix, so that halves of the sums are
/// shared (the fast Walsh-Hadamard transform).
pub(crate) fn project(vector: &[f32], dimensions: usize) -> Vec<f32> {
    let mut sums = vector.to_vec();
    sums.resize(vector.len().next_power_of_two(), 0.0);
    let mut half = 1;
    while half < sums.len() {
        for pair in sums.chunks_exact_mut(2 * half) {
            let (lower, upper) = pair.split_at_mut(half);
            for (lower, upper) in lower.iter_mut().zip(upper) {
                (*lower, *upper) = (*lower + *upper, *lower - *upper);
            }
        }
        half *= 2;
    }
    let scale = scale_of(vector.len());
    sums.iter().take(dimensions).map(|sum| (sum * scale).clamp(-f32::MAX, f32::MAX)).collect()
}

/// What a number of a projected vector is multiplied by, so that lengths stay.
pub(crate) fn scale_of(dimensions: usize) -> f32 {
    (1.0 / (dimensions as f64).sqrt()) as f32
}

/// With what weight a dimension counts for one of the fewer.
#[inline]
pub(crate) fn weight(row: usize, column: usize, scale: f32) -> f32 {
    if (row & column).count_ones().is_multiple_of(2) { scale } else { -scale }
}
