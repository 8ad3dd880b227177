//! How far this cluster is in what another one has done: the record, which stands beside the data.

use std::collections::BTreeMap;
use std::fmt;

use resp::Frame as Reply;
use site::Position;
use stdx::UnixMillis;

/// The key of the record.
pub(super) const RECORD: &str = "{holdfast}:site";

/// The key of the near cluster's own record, where that follows another one itself. It comes with the data, and so says
/// how far this cluster is in what that other one has done.
pub(super) const ORIGIN: &str = "{holdfast}:origin";

/// How far this cluster is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// `copying`, `following` or `promoted`.
    pub(super) phase: String,
    pub(super) writer: String,
    pub(super) cluster: u128,
    pub(super) places: Vec<u64>,
    pub(super) moment_ms: i64,
    pub(super) request_count: u64,
    pub(super) transaction_count: u64,
    pub(super) written_ms: i64,
    /// When the near side was last heard, and what it had not sent then.
    pub(super) heard_ms: i64,
    pub(super) pending_bytes: u64,
    pub(super) pending_steps: u64,
    pub(super) lag_ms: u64,
    pub(super) is_linked: bool,
    pub(super) address: String,
    /// How much of a copy is here, if the rest can follow.
    pub(super) copy: Option<CopyPlace>,
}

/// A place in a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CopyPlace {
    /// The copy.
    pub(super) id: u128,
    /// So many bytes of it are here.
    pub(super) offset: u64,
    /// What comes next belongs to this database.
    pub(super) database: u16,
}

impl fmt::Display for CopyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}:{}:{}", self.id, self.offset, self.database)
    }
}

impl CopyPlace {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let id = u128::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { id, offset: parts.next()?.parse().ok()?, database: parts.next()?.parse().ok()? })
    }
}

impl Record {
    /// Up to where what the near cluster has done is here: the form in which it is asked for what comes then.
    pub(super) fn place(&self) -> (u128, Vec<u64>) {
        let moment = self.moment_ms.cast_unsigned();
        (self.cluster, self.places.iter().copied().chain([moment]).collect())
    }

    pub(super) fn position(&self) -> Position {
        Position { places: self.places.clone(), moment: UnixMillis(self.moment_ms) }
    }

    pub(super) fn words(&self) -> Vec<Vec<u8>> {
        let places: Vec<String> = self.places.iter().map(u64::to_string).collect();
        let fields = [
            ("phase", self.phase.clone()),
            ("writer", self.writer.clone()),
            ("cluster", format!("{:032x}", self.cluster)),
            ("places", places.join(",")),
            ("moment-ms", self.moment_ms.to_string()),
            ("requests", self.request_count.to_string()),
            ("transactions", self.transaction_count.to_string()),
            ("written-ms", self.written_ms.to_string()),
            ("heard-ms", self.heard_ms.to_string()),
            ("pending-bytes", self.pending_bytes.to_string()),
            ("pending-changes", self.pending_steps.to_string()),
            ("lag-ms", self.lag_ms.to_string()),
            ("link", if self.is_linked { "up" } else { "down" }.to_owned()),
            ("address", self.address.clone()),
            ("copy", self.copy.as_ref().map(CopyPlace::to_string).unwrap_or_default()),
        ];
        let mut words = vec![b"HSET".to_vec(), RECORD.into()];
        words.extend(fields.into_iter().flat_map(|(name, value)| [name.as_bytes().to_vec(), value.into_bytes()]));
        words
    }

    /// Reads the reply of HGETALL; none if there is no record.
    pub(super) fn read(reply: &Reply) -> Option<Self> {
        let words: Vec<String> = reply
            .elements()?
            .iter()
            .map(|word| String::from_utf8_lossy(word.as_bytes().unwrap_or_default()).into_owned())
            .collect();
        let fields: BTreeMap<&str, &str> = words.chunks_exact(2).map(|pair| (&*pair[0], &*pair[1])).collect();
        let text = |name: &str| fields.get(name).copied().unwrap_or_default();
        let number = |name: &str| text(name).parse::<i64>().unwrap_or(0);
        let places = text("places").split(',').filter(|place| !place.is_empty()).map(str::parse);
        (!fields.is_empty()).then(|| Self {
            phase: text("phase").to_owned(),
            writer: text("writer").to_owned(),
            cluster: u128::from_str_radix(text("cluster"), 16).unwrap_or(0),
            places: places.collect::<Result<_, _>>().unwrap_or_default(),
            moment_ms: number("moment-ms"),
            request_count: number("requests").cast_unsigned(),
            transaction_count: number("transactions").cast_unsigned(),
            written_ms: number("written-ms"),
            heard_ms: number("heard-ms"),
            pending_bytes: number("pending-bytes").cast_unsigned(),
            pending_steps: number("pending-changes").cast_unsigned(),
            lag_ms: number("lag-ms").cast_unsigned(),
            is_linked: text("link") == "up",
            address: text("address").to_owned(),
            copy: CopyPlace::parse(text("copy")),
        })
    }
}
