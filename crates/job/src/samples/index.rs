//! The `.idx` half of an indexed dataset, MMIDIDX version 1.
//!
//! All numbers are little-endian: the magic, u64 version, u8 dtype code, u64 S, u64 D, then i32
//! lengths in tokens `[S]`, i64 byte offsets into the `.bin` `[S]`, i64 document indices `[D]`, and
//! optionally i8 modes `[S]`. A document is a run of sequences; the indices begin with 0 and go on
//! with the end of each document, so there are D − 1 documents.

use std::ops::Range;

pub const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
pub const VERSION: u64 = 1;
/// Bytes before the first length.
pub const HEADER: usize = 34;

/// How a token is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    U8,
    I8,
    I16,
    I32,
    I64,
    F64,
    F32,
    U16,
}

/// In the order of their codes, which begin at 1.
const DTYPES: [Dtype; 8] = [
    Dtype::U8,
    Dtype::I8,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::F64,
    Dtype::F32,
    Dtype::U16,
];

impl Dtype {
    fn from_code(code: u8) -> Option<Self> {
        DTYPES.get(usize::from(code).checked_sub(1)?).copied()
    }
    #[must_use]
    pub fn code(self) -> u8 {
        DTYPES
            .iter()
            .zip(1..)
            .find(|(d, _)| **d == self)
            .map_or(0, |(_, code)| code)
    }
    /// Bytes of one token.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F64 => "float64",
            Self::F32 => "float32",
            Self::U16 => "uint16",
        }
    }
    /// Can it hold tokens? Floats cannot.
    #[must_use]
    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F64 | Self::F32)
    }
    /// Calls `each` with every token of `bytes`, in order.
    pub fn decode(self, bytes: &[u8], mut each: impl FnMut(i64)) {
        macro_rules! all {
            ($number:ty) => {
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .for_each(|b| each(<$number>::from_le_bytes(*b) as i64))
            };
        }
        match self {
            Self::U8 => all!(u8),
            Self::I8 => all!(i8),
            Self::I16 => all!(i16),
            Self::I32 => all!(i32),
            Self::I64 => all!(i64),
            Self::F64 => all!(f64),
            Self::F32 => all!(f32),
            Self::U16 => all!(u16),
        }
    }
}

/// Why bytes cannot be read as an `.idx` at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("is not an index of a Megatron dataset: it does not begin with MMIDIDX")]
    Magic,
    #[error("has version {0} of the format; version 1 is known")]
    Version(u64),
    #[error("names the token type {0}, which is none (1 to 8 are)")]
    Dtype(u8),
    #[error("is cut off: its header needs {needed} bytes, it has {found}")]
    Truncated { needed: u128, found: usize },
}

/// Where in the file everything lies; checked against its size.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    dtype: Dtype,
    lengths: Range<usize>,
    pointers: Range<usize>,
    documents: Range<usize>,
    modes: Option<Range<usize>>,
    end: usize,
}

/// An `.idx`, read in place: nothing is copied and nothing allocated, whatever the header claims.
#[derive(Clone, Debug)]
pub struct Index<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

impl Layout {
    pub fn parse(bytes: &[u8]) -> Result<Self, Damage> {
        let truncated = |needed: u128| Damage::Truncated {
            needed,
            found: bytes.len(),
        };
        if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) || bytes.is_empty() {
            return Err(Damage::Magic);
        }
        if bytes.len() < HEADER {
            return Err(truncated(HEADER as u128));
        }
        let number =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if number(9) != VERSION {
            return Err(Damage::Version(number(9)));
        }
        let dtype = Dtype::from_code(bytes[17]).ok_or(Damage::Dtype(bytes[17]))?;
        let (sequences, documents) = (u128::from(number(18)), u128::from(number(26)));
        let needed = HEADER as u128 + 12 * sequences + 8 * documents;
        if needed > bytes.len() as u128 {
            return Err(truncated(needed));
        }
        // Both counts fit the file, so they fit a usize.
        let (sequences, documents) = (sequences as usize, documents as usize);
        let lengths = HEADER..HEADER + 4 * sequences;
        let pointers = lengths.end..lengths.end + 8 * sequences;
        let documents = pointers.end..pointers.end + 8 * documents;
        let modes = documents.end..documents.end + sequences;
        let modes = (sequences > 0 && modes.end == bytes.len()).then_some(modes);
        let end = modes.as_ref().map_or(documents.end, |m| m.end);
        Ok(Self {
            dtype,
            lengths,
            pointers,
            documents,
            modes,
            end,
        })
    }
}

impl<'a> Index<'a> {
    /// Reads any bytes; what is wrong in the tables themselves is for `tprimat data verify` to
    /// tell.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Damage> {
        Ok(Self {
            layout: Layout::parse(bytes)?,
            bytes,
        })
    }

    /// `layout` is of these very bytes.
    pub(crate) fn with(layout: &Layout, bytes: &'a [u8]) -> Self {
        Self {
            layout: layout.clone(),
            bytes,
        }
    }

    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.layout.dtype
    }
    #[must_use]
    pub fn num_sequences(&self) -> usize {
        self.layout.lengths.len() / 4
    }
    /// Entries of the document table: one more than there are documents.
    #[must_use]
    pub fn num_document_indices(&self) -> usize {
        self.layout.documents.len() / 8
    }
    #[must_use]
    pub fn num_documents(&self) -> usize {
        self.num_document_indices().saturating_sub(1)
    }
    /// Tokens of each sequence.
    pub fn lengths(&self) -> impl DoubleEndedIterator<Item = i32> + ExactSizeIterator + use<'a> {
        self.lengths_bytes()
            .as_chunks()
            .0
            .iter()
            .map(|b| i32::from_le_bytes(*b))
    }
    /// Where each sequence begins in the `.bin`, in bytes.
    pub fn pointers(&self) -> impl DoubleEndedIterator<Item = i64> + ExactSizeIterator + use<'a> {
        self.bytes[self.layout.pointers.clone()]
            .as_chunks()
            .0
            .iter()
            .map(|b| i64::from_le_bytes(*b))
    }
    /// 0, then the sequence that each document ends before.
    pub fn document_indices(
        &self,
    ) -> impl DoubleEndedIterator<Item = i64> + ExactSizeIterator + use<'a> {
        self.documents_bytes()
            .as_chunks()
            .0
            .iter()
            .map(|b| i64::from_le_bytes(*b))
    }
    /// The lengths as they are stored.
    #[must_use]
    pub fn lengths_bytes(&self) -> &'a [u8] {
        &self.bytes[self.layout.lengths.clone()]
    }
    /// The document indices as they are stored.
    #[must_use]
    pub fn documents_bytes(&self) -> &'a [u8] {
        &self.bytes[self.layout.documents.clone()]
    }
    /// A mode for each sequence, in multimodal datasets.
    #[must_use]
    pub fn modes(&self) -> Option<&'a [u8]> {
        self.layout.modes.clone().map(|range| &self.bytes[range])
    }
    /// Bytes after the last table.
    #[must_use]
    pub fn num_trailing_bytes(&self) -> usize {
        self.bytes.len() - self.layout.end
    }
    /// Where the `.bin` should end by the last sequence; `None` if that is no position.
    #[must_use]
    pub fn end_of_tokens(&self) -> Option<u64> {
        let (Some(pointer), Some(length)) =
            (self.pointers().next_back(), self.lengths().next_back())
        else {
            return Some(0);
        };
        let bytes = u64::try_from(length).ok()? * self.dtype().size() as u64;
        u64::try_from(pointer).ok()?.checked_add(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::{Dataset, dataset_for_tests::write_dataset};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read(
            dtype in 0usize..6,
            documents in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(0i64..128, 0..20), 0..4), 0..8),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let prefix = folder.path().join("d.v1");
            let integers = DTYPES.iter().filter(|dtype| dtype.is_integer());
            write_dataset(&prefix, *integers.clone().nth(dtype).unwrap(), &documents);
            let sequences: Vec<&Vec<i64>> = documents.iter().flatten().collect();
            let tokens: Vec<i64> = sequences.iter().copied().flatten().copied().collect();
            let dataset = Dataset::open(&prefix).unwrap();
            let index = dataset.index();
            prop_assert_eq!(index.lengths().collect::<Vec<_>>(), sequences.iter().map(|s| s.len() as i32).collect::<Vec<_>>());
            let mut end = 0;
            let ends = documents.iter().map(|d| { end += d.len() as i64; end });
            prop_assert_eq!(index.document_indices().collect::<Vec<_>>(), std::iter::once(0).chain(ends).collect::<Vec<_>>());
            let mut read = Vec::new();
            index.dtype().decode(dataset.bin(), |token| read.push(token));
            prop_assert_eq!(&read, &tokens);
        }
    }

    fn header(sequences: u64, documents: u64) -> Vec<u8> {
        [
            &MAGIC[..],
            &1u64.to_le_bytes(),
            &[4],
            &sequences.to_le_bytes(),
            &documents.to_le_bytes(),
        ]
        .concat()
    }

    #[test]
    fn codes_are_those_of_the_format() {
        let names: Vec<_> = (1..=8)
            .map(|code| Dtype::from_code(code).unwrap().name())
            .collect();
        assert_eq!(
            names,
            [
                "uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"
            ]
        );
        assert!((1..=8).all(|code| Dtype::from_code(code).unwrap().code() == code));
        assert_eq!((Dtype::from_code(0), Dtype::from_code(9)), (None, None));
    }

    #[test]
    fn a_header_that_claims_more_than_there_is_is_refused() {
        for (sequences, documents) in [
            (1 << 60, 1),
            (u64::MAX, u64::MAX),
            (1, 0),
            (0, 1),
            (u64::MAX, 0),
        ] {
            let bytes = header(sequences, documents);
            assert!(
                matches!(
                    Index::parse(&bytes),
                    Err(Damage::Truncated { found: 34, .. })
                ),
                "{sequences}"
            );
        }
    }

    #[test]
    fn every_cut_and_every_wrong_header_is_told() {
        let mut bytes = header(1, 2);
        bytes.extend(7i32.to_le_bytes().iter().chain(&[0; 24]));
        let index = Index::parse(&bytes).unwrap();
        assert_eq!(
            (index.num_sequences(), index.num_documents(), index.modes()),
            (1, 1, None)
        );
        assert_eq!(
            (index.lengths().next(), index.end_of_tokens()),
            (Some(7), Some(28))
        );
        for cut in 1..bytes.len() {
            assert!(
                matches!(Index::parse(&bytes[..cut]), Err(Damage::Truncated { .. })),
                "{cut}"
            );
        }
        assert_eq!(Index::parse(b"").unwrap_err(), Damage::Magic);
        assert_eq!(Index::parse(b"TNTIDX\0\0").unwrap_err(), Damage::Magic);
        let damaged = |at: usize, byte| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Index::parse(&bytes).unwrap_err()
        };
        assert_eq!(damaged(9, 2), Damage::Version(2));
        assert_eq!(damaged(17, 9), Damage::Dtype(9));
        bytes.push(1);
        assert_eq!(Index::parse(&bytes).unwrap().modes(), Some(&[1][..]));
        bytes.push(1);
        assert_eq!(Index::parse(&bytes).unwrap().num_trailing_bytes(), 2);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), s in 0..12u64, d in 0..12u64) {
            let bytes = [header(s, d), tail].concat();
            if let Ok(index) = Index::parse(&bytes) {
                prop_assert_eq!(index.lengths().len(), index.pointers().len());
                let _ = (index.end_of_tokens(), index.document_indices().count(), index.num_trailing_bytes());
            }
        }
    }
}
