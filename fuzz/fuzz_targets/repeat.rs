//! A part of the input, over and over up to 200 kB: a reader whose time is quadratic in the log
//! runs into `-timeout`.
//!
//! In each repetition 0x00 is its number, and 0x01 the same counting down, so that steps can go on
//! in either direction.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tprimat::logs::{LogSection, classify, names, parse, parse_any};

const SIZE: usize = 200_000;

fuzz_target!(|data: &[u8]| {
    let [format, begin, length, text @ ..] = data else { return };
    let (head, rest) = text.split_at(usize::from(*begin).min(text.len()));
    let (part, tail) = rest.split_at((usize::from(*length) + 1).min(rest.len()));
    let mut log = head.to_vec();
    for number in (0..SIZE / part.len().max(1)).take_while(|_| !part.is_empty()) {
        for byte in part {
            match byte {
                0 => log.extend(number.to_string().bytes()),
                1 => log.extend((SIZE - number).to_string().bytes()),
                byte => log.push(*byte),
            }
        }
        if log.len() >= SIZE {
            break;
        }
    }
    log.extend_from_slice(tail);
    let names: Vec<_> = names().collect();
    match usize::from(*format) % (names.len() + 2) {
        0 => drop(parse_any(&log)),
        1 => drop(classify(&log, &tprimat::logs::ExitSummary::default())),
        n => drop(parse(&LogSection::named(names[n - 2]), &log)),
    }
});
