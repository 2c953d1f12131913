//! The first byte names the format by which the rest is read; also line by line, as the progress
//! display does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tprimat::logs::{Live, LogSection, names, parse};

fuzz_target!(|data: &[u8]| {
    let Some((first, log)) = data.split_first() else { return };
    let names: Vec<_> = names().collect();
    let section = LogSection::named(names[usize::from(*first) % names.len()]);
    let trace = parse(&section, log);
    assert_eq!(trace.format, section.format);
    serde_json::to_string(&trace).expect("a trace is JSON");
    let mut live = Live::new(&section);
    for line in log.split_inclusive(|b| *b == b'\n') {
        live.feed(line);
    }
});
