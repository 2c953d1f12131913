//! What the tests of several readers share.

use super::{LogSection, Parser, Trace};

/// The kinds of all anomalies, in their order.
pub fn all_kinds(trace: &Trace) -> Vec<&str> {
    trace.anomalies.iter().map(|a| a.kind.as_str()).collect()
}

/// The same, each once.
pub fn kinds(trace: &Trace) -> Vec<&str> {
    let mut kinds = all_kinds(trace);
    kinds.dedup();
    kinds
}

/// Reads `log` in pieces of `size`, which must change nothing.
pub fn in_pieces(format: &str, log: &[u8], size: usize) -> Trace {
    let mut parser = Parser::new(&LogSection::named(format)).unwrap();
    log.chunks(size.max(1)).for_each(|piece| parser.feed(piece));
    parser.finish()
}

/// Property tests of a reader: whatever the bytes are, it ends, and prefixes of ranks change
/// nothing.
macro_rules! damaged {
    ($format:literal, $log:expr) => {
        proptest::proptest! {
            #[test]
            fn never_panics_on_any_bytes(log in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
                let _ = crate::parse(&LogSection::named($format), &log);
            }

            #[test]
            fn never_panics_on_a_damaged_log(
                edits in proptest::collection::vec((0..$log.len(), proptest::prelude::any::<u8>()), 0..12),
                cut in 0..$log.len(),
                size in 1usize..200,
            ) {
                let mut log = $log.as_bytes().to_vec();
                for (at, byte) in edits {
                    log[at] = byte;
                }
                let whole = crate::parse(&LogSection::named($format), &log);
                proptest::prop_assert_eq!(crate::testing::in_pieces($format, &log, size), whole);
                let _ = crate::parse(&LogSection::named($format), &log[..cut]);
                let _ = crate::parse_any(&log);
            }
        }
    };
}
pub(crate) use damaged;
