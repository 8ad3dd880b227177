//! An array that shares with its clones what neither side has changed: elements by number, in small blocks.
//!
//! Unlike a [`crate::tree`] it neither inserts nor cuts; so an element is three references away, whatever the length.

use triomphe::Arc;

use crate::record::allocated_bytes;

/// Elements of a block: what a first change copies after a clone.
const BLOCK_LEN: usize = 8;
/// Blocks of a row: what a clone holds on to by one reference.
const ROW_LEN: usize = 128;

type Block<T> = Arc<[T; BLOCK_LEN]>;
type Row<T> = Arc<Vec<Block<T>>>;

/// Bytes of a block and of its counter of references.
const fn block_bytes<T>() -> usize {
    size_of::<T>() * BLOCK_LEN + size_of::<usize>()
}

/// The array.
#[derive(Clone, Debug)]
pub(crate) struct Shelf<T> {
    rows: Vec<Row<T>>,
    len: usize,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), len: 0 }
    }
}

impl<T: Clone + Default> Shelf<T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated for it, without what its elements have allocated.
    pub(crate) fn bytes(&self) -> usize {
        let blocks = self.len.div_ceil(BLOCK_LEN);
        let rows = blocks.div_ceil(ROW_LEN);
        let row_bytes = allocated_bytes(size_of::<usize>() + size_of::<Vec<Block<T>>>());
        let whole = blocks / ROW_LEN * allocated_bytes(ROW_LEN * size_of::<usize>());
        let rest = (blocks % ROW_LEN).next_multiple_of(4) * size_of::<usize>();
        let list = if rows == 0 { 0 } else { allocated_bytes(rows.next_power_of_two() * size_of::<usize>()) };
        list + rows * row_bytes + whole + rest + blocks * allocated_bytes(block_bytes::<T>())
    }

    /// The element of this number.
    ///
    /// # Panics
    /// If there are not as many.
    #[inline]
    pub(crate) fn at(&self, number: u32) -> &T {
        let number = number as usize;
        assert!(number < self.len, "no element has this number");
        &self.rows[number / (BLOCK_LEN * ROW_LEN)][number / BLOCK_LEN % ROW_LEN][number % BLOCK_LEN]
    }

    /// The same, for change.
    ///
    /// # Panics
    /// If there are not as many.
    pub(crate) fn at_mut(&mut self, number: u32) -> &mut T {
        let number = number as usize;
        assert!(number < self.len, "no element has this number");
        let row = Arc::make_mut(&mut self.rows[number / (BLOCK_LEN * ROW_LEN)]);
        &mut Arc::make_mut(&mut row[number / BLOCK_LEN % ROW_LEN])[number % BLOCK_LEN]
    }

    /// Puts an element behind all others.
    pub(crate) fn push(&mut self, element: T) {
        let number = self.len;
        if number.is_multiple_of(BLOCK_LEN * ROW_LEN) {
            self.rows.push(Arc::new(Vec::new()));
        }
        if number.is_multiple_of(BLOCK_LEN) {
            let row = Arc::make_mut(self.rows.last_mut().expect("there is one now"));
            if row.len() == row.capacity() {
                row.reserve_exact(if row.len() < ROW_LEN / 4 { 4 } else { ROW_LEN - row.len() });
            }
            row.push(Arc::new(std::array::from_fn(|_| T::default())));
        }
        self.len += 1;
        *self.at_mut(number as u32) = element;
    }

    /// Takes the last element.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let element = std::mem::take(self.at_mut(last as u32));
        self.len = last;
        if last.is_multiple_of(BLOCK_LEN) {
            Arc::make_mut(self.rows.last_mut().expect("there was an element")).pop();
        }
        if last.is_multiple_of(BLOCK_LEN * ROW_LEN) {
            self.rows.pop();
        }
        Some(element)
    }

    /// Frees up to about `budget` elements, and counts them down. False if nothing is left.
    pub(crate) fn free_some(&mut self, budget: &mut usize) -> bool {
        while *budget > 0 {
            let Some(row) = self.rows.last_mut() else { break };
            let is_done = match Arc::get_mut(row) {
                // Others have it and will free it.
                None => true,
                Some(blocks) => blocks.pop().is_none(),
            };
            if is_done {
                self.rows.pop();
            }
            let spent = if is_done { 1 } else { BLOCK_LEN };
            self.len = self.len.saturating_sub(spent);
            *budget = budget.saturating_sub(spent);
        }
        if self.rows.is_empty() {
            self.len = 0;
        }
        !self.rows.is_empty()
    }
}
