//! Reading AOF files: requests in the protocol's own form, transactions as a whole, and marks of time.

use std::io::Read;

use crate::STRING_BYTES_MAX;
use crate::fault::{Fault, What};
use crate::producers::told_to_clients;
use crate::source::Source;

/// Most words of a request.
const WORDS_MAX: u64 = 1 << 20;

/// Most bytes of a request, and of a transaction.
const REQUEST_BYTES_MAX: u64 = 2 * STRING_BYTES_MAX;

/// Longest line: `*`, `$` or `#` with what follows.
const LINE_BYTES_MAX: usize = 256;

/// The words of a request.
pub type Request = Vec<Vec<u8>>;

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A request, or all requests of a transaction without MULTI and EXEC, in words that a server takes from clients.
    Requests {
        /// Where it begins.
        offset: u64,
        /// The requests to carry out, all or nothing; none if it has changed nothing.
        requests: Vec<Request>,
        /// They stand between MULTI and EXEC, or for one request.
        is_transaction: bool,
    },
    /// What follows was written at this time, in seconds of Unix time, or later.
    Time(i64),
    /// The end of the file.
    End {
        /// Up to here it is whole: further on it is cut in the middle of a request, or of a transaction.
        torn_at: Option<u64>,
        /// What is cut off there is a transaction that does not end.
        is_open_transaction: bool,
    },
}

/// Reads a file item by item.
#[derive(Debug)]
pub struct AofReader<'a, R> {
    source: &'a mut Source<R>,
}

impl<'a, R: Read> AofReader<'a, R> {
    /// Reads on from where `source` stands: at its beginning, or behind an RDB file.
    pub fn new(source: &'a mut Source<R>) -> Self {
        Self { source }
    }

    /// Bytes that have been read.
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// The next item. Behind [`Item::End`] there is none.
    ///
    /// # Errors
    /// If there is no item there.
    pub fn next_item(&mut self) -> Result<Item, Fault> {
        let offset = self.source.offset();
        let mut requests: Option<Vec<Request>> = None;
        let mut bytes = 0;
        loop {
            let request = match self.element() {
                Ok(Some(Element::Request(request))) => request,
                // Within a transaction it is of no use.
                Ok(Some(Element::Time(_))) if requests.is_some() => continue,
                Ok(Some(Element::Time(seconds))) => return Ok(Item::Time(seconds)),
                Ok(Some(Element::Remark)) => continue,
                Ok(None) => {
                    let is_open_transaction = requests.is_some();
                    return Ok(Item::End { torn_at: is_open_transaction.then_some(offset), is_open_transaction });
                }
                Err(Fault { what: What::Truncated, .. }) => {
                    return Ok(Item::End { torn_at: Some(offset), is_open_transaction: requests.is_some() });
                }
                Err(fault) => return Err(fault),
            };
            bytes += request.iter().map(|word| word.len() as u64 + 32).sum::<u64>();
            if bytes > REQUEST_BYTES_MAX {
                return Err(self.source.fault(What::Malformed("a transaction is longer than 1 GiB")));
            }
            let is = |name: &[u8]| request.len() == 1 && request[0].eq_ignore_ascii_case(name);
            match &mut requests {
                None if is(b"MULTI") => requests = Some(Vec::new()),
                None => {
                    let requests = told_to_clients(request);
                    let is_transaction = requests.len() > 1;
                    return Ok(Item::Requests { offset, requests, is_transaction });
                }
                Some(_) if is(b"MULTI") => {
                    return Err(self.source.fault(What::Malformed("a MULTI stands within a MULTI")));
                }
                Some(gathered) if is(b"EXEC") => {
                    let requests = std::mem::take(gathered).into_iter().flat_map(told_to_clients).collect();
                    return Ok(Item::Requests { offset, requests, is_transaction: true });
                }
                Some(gathered) => gathered.push(request),
            }
        }
    }

    fn element(&mut self) -> Result<Option<Element>, Fault> {
        match self.source.peek()? {
            None => Ok(None),
            Some(b'#') => {
                let line = self.line()?;
                let seconds = line.strip_prefix(b"#TS:").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
                Ok(Some(seconds.map_or(Element::Remark, Element::Time)))
            }
            Some(_) => self.request().map(Element::Request).map(Some),
        }
    }

    fn request(&mut self) -> Result<Request, Fault> {
        let count = self.number(b'*', WORDS_MAX)?;
        if count == 0 {
            return Err(self.source.fault(What::Malformed("a request has no words")));
        }
        let (mut words, mut bytes) = (Vec::new(), 0);
        for _ in 0..count {
            let length = self.number(b'$', STRING_BYTES_MAX)?;
            bytes += length;
            if bytes > REQUEST_BYTES_MAX {
                return Err(self.source.fault(What::Malformed("a request is longer than 1 GiB")));
            }
            words.push(self.source.take(length)?);
            if self.source.array()? != *b"\r\n" {
                return Err(self.source.fault(What::Malformed("a word does not end where its length says")));
            }
        }
        Ok(words)
    }

    fn number(&mut self, mark: u8, max: u64) -> Result<u64, Fault> {
        let line = self.line()?;
        let digits = line.strip_prefix(&[mark]).filter(|digits| digits.iter().all(u8::is_ascii_digit));
        digits
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
            .filter(|number| *number <= max)
            .ok_or_else(|| self.source.fault(What::Malformed("this is no request of an AOF file")))
    }

    /// A line without its end.
    fn line(&mut self) -> Result<Vec<u8>, Fault> {
        let mut line = Vec::new();
        loop {
            match self.source.byte()? {
                b'\n' if line.last() == Some(&b'\r') => {
                    line.pop();
                    return Ok(line);
                }
                byte if line.len() < LINE_BYTES_MAX => line.push(byte),
                _ => return Err(self.source.fault(What::Malformed("a line is too long"))),
            }
        }
    }
}

enum Element {
    Request(Request),
    Time(i64),
    Remark,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(bytes: &[u8]) -> Result<Vec<Item>, Fault> {
        let mut source = Source::new(bytes);
        let mut reader = AofReader::new(&mut source);
        let mut items = Vec::new();
        loop {
            items.push(reader.next_item()?);
            if matches!(items.last(), Some(Item::End { .. })) {
                return Ok(items);
            }
        }
    }

    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";

    fn set(offset: u64) -> Item {
        let requests = vec![vec![b"SET".to_vec(), b"a".to_vec(), b"1".to_vec()]];
        Item::Requests { offset, requests, is_transaction: false }
    }

    #[test]
    fn requests_transactions_and_times_are_told_apart() {
        let bytes = [b"#TS:1700000000\r\n", SET, b"*1\r\n$5\r\nmulti\r\n", SET, SET, b"*1\r\n$4\r\nEXEC\r\n"].concat();
        let items = items(&bytes).expect("a file");
        assert_eq!(items[..2], [Item::Time(1_700_000_000), set(16)]);
        assert!(matches!(&items[2], Item::Requests { requests, is_transaction: true, .. } if requests.len() == 2));
        assert_eq!(items[3], Item::End { torn_at: None, is_open_transaction: false });
    }

    #[test]
    fn wherever_a_file_is_cut_what_is_whole_is_read() {
        let bytes = [SET, b"*1\r\n$5\r\nMULTI\r\n", SET, b"*1\r\n$4\r\nEXEC\r\n"].concat();
        for length in 0..bytes.len() {
            let items = items(&bytes[..length]).expect("a torn file is no fault");
            let expected = if length < SET.len() { 1 } else { 2 };
            assert_eq!(items.len(), expected, "{length}");
            let Some(Item::End { torn_at, is_open_transaction }) = items.last() else { panic!("no end") };
            let whole = if length < SET.len() { 0 } else { SET.len() };
            assert_eq!(*torn_at, (length != whole).then_some(whole as u64), "{length}");
            assert_eq!(*is_open_transaction, length >= SET.len() + 15, "{length}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for bytes in [
            &b"hello\r\n"[..],
            b"*0\r\n",
            b"*-1\r\n",
            b"*99999999999\r\n",
            b"*1\r\n$99999999999\r\n",
            b"*1\r\n$1\r\nabc",
            b"*1\r\n$5\r\nMULTI\r\n*1\r\n$5\r\nMULTI\r\n",
        ] {
            assert!(items(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
