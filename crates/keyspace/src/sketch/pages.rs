//! The cells of a sketch: zeros until they are written, in pages that are set aside one by one and shared until one
//! side changes them. So a large sketch is reserved at once, and a checkpoint holds on to it without a copy.

use std::sync::Arc;

use crate::record::allocated_bytes;

/// Bytes of a page, which with its counters of references is a block of 4 KiB. Cells do not reach across its end.
pub(crate) const PAGE_BYTES: usize = 4096 - SHARE_BYTES;

/// Pages of a group, which is what a first change behind a checkpoint copies the list of.
const GROUP_PAGES: usize = 256;

/// Bytes beside those of a page: two counters of references.
const SHARE_BYTES: usize = 16;

type Group = Vec<Option<Arc<[u8]>>>;

/// A string of bytes of fixed length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    groups: Vec<Option<Arc<Group>>>,
    len: usize,
    /// Bytes allocated for pages and groups.
    allocated: usize,
}

impl Pages {
    /// So many zeros.
    pub(crate) fn new(len: usize) -> Self {
        let groups = vec![None; len.div_ceil(PAGE_BYTES * GROUP_PAGES)];
        Self { groups, len, allocated: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn page_count(&self) -> usize {
        self.len.div_ceil(PAGE_BYTES)
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.allocated + allocated_bytes(self.groups.len() * size_of::<Option<Arc<Group>>>())
    }

    /// A page, if it has been set aside.
    pub(crate) fn page(&self, place: usize) -> Option<&[u8]> {
        self.groups[place / GROUP_PAGES].as_ref()?[place % GROUP_PAGES].as_deref()
    }

    fn page_len(&self, place: usize) -> usize {
        PAGE_BYTES.min(self.len - place * PAGE_BYTES)
    }

    fn page_mut(&mut self, place: usize) -> &mut [u8] {
        let page_len = self.page_len(place);
        let in_group = GROUP_PAGES.min(self.page_count() - place / GROUP_PAGES * GROUP_PAGES);
        let group = self.groups[place / GROUP_PAGES].get_or_insert_with(|| {
            self.allocated += allocated_bytes(in_group * size_of::<Option<Arc<[u8]>>>()) + SHARE_BYTES;
            Arc::new(vec![None; in_group])
        });
        let page = Arc::make_mut(group)[place % GROUP_PAGES].get_or_insert_with(|| {
            self.allocated += allocated_bytes(page_len + SHARE_BYTES);
            vec![0; page_len].into()
        });
        Arc::make_mut(page)
    }

    /// Sets a page that has been read: nothing if it was never set aside. `None` if it cannot be that.
    pub(crate) fn set_page(&mut self, place: usize, bytes: &[u8]) -> Option<()> {
        if bytes.is_empty() {
            return Some(());
        }
        if bytes.len() != self.page_len(place) {
            return None;
        }
        self.page_mut(place).copy_from_slice(bytes);
        Some(())
    }

    #[inline]
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.page(at / PAGE_BYTES).map_or(0, |page| page[at % PAGE_BYTES])
    }

    #[inline]
    pub(crate) fn set_byte(&mut self, at: usize, byte: u8) {
        self.page_mut(at / PAGE_BYTES)[at % PAGE_BYTES] = byte;
    }

    /// The number of 32 bits, little-endian, at a multiple of four.
    #[inline]
    pub(crate) fn number(&self, at: usize) -> u32 {
        self.page(at / PAGE_BYTES).map_or(0, |page| {
            let bytes = &page[at % PAGE_BYTES..][..4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        })
    }

    #[inline]
    pub(crate) fn set_number(&mut self, at: usize, number: u32) {
        self.page_mut(at / PAGE_BYTES)[at % PAGE_BYTES..][..4].copy_from_slice(&number.to_le_bytes());
    }

    /// The bytes from one place on, up to `len` of them.
    pub(crate) fn read(&self, from: usize, len: usize) -> Vec<u8> {
        let end = self.len.min(from.saturating_add(len));
        let mut out = vec![0; end.saturating_sub(from)];
        let mut at = from;
        while at < end {
            let stop = end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
            if let Some(page) = self.page(at / PAGE_BYTES) {
                out[at - from..stop - from].copy_from_slice(&page[at % PAGE_BYTES..][..stop - at]);
            }
            at = stop;
        }
        out
    }

    /// Writes bytes, which must fit; zeros where nothing has been set aside stay so.
    pub(crate) fn write(&mut self, from: usize, bytes: &[u8]) {
        let end = from + bytes.len();
        let mut at = from;
        while at < end {
            let stop = end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
            let part = &bytes[at - from..stop - from];
            if self.page(at / PAGE_BYTES).is_some() || part.iter().any(|&byte| byte != 0) {
                self.page_mut(at / PAGE_BYTES)[at % PAGE_BYTES..][..part.len()].copy_from_slice(part);
            }
            at = stop;
        }
    }

    /// Frees up to about `budget` pages, and counts them down. False if nothing is left.
    pub(crate) fn free_some(&mut self, budget: &mut usize) -> bool {
        while *budget > 0 {
            match self.groups.pop() {
                None => return false,
                Some(group) => {
                    let pages = group.as_ref().map_or(0, |group| group.iter().flatten().count());
                    self.allocated -= self.allocated.min(pages * allocated_bytes(PAGE_BYTES + SHARE_BYTES));
                    *budget = budget.saturating_sub(1 + pages);
                }
            }
        }
        true
    }
}
