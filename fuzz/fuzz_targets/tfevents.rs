//! TensorBoard's event file, as it is; or records cut at 0xff, each of which is given its length
//! and checksums first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tprimat::logs::{TfEvents, tfevents};

/// CRC-32C, masked as TFRecords have it.
fn crc(bytes: &[u8]) -> [u8; 4] {
    let bit = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    let crc = !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit));
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &crc(&length), event, &crc(event)].concat()
}

fuzz_target!(|data: &[u8]| {
    let Some((first, log)) = data.split_first() else { return };
    let framed = (first & 1 == 1).then(|| log.split(|b| *b == 0xff).flat_map(record).collect::<Vec<u8>>());
    let log = framed.as_deref().unwrap_or(log);
    let trace = tfevents(log);
    assert!(trace.steps.is_sorted_by(|a, b| a.step < b.step), "steps are in order, each once");
    serde_json::to_string(&trace).expect("a trace is JSON");
    let mut pieces = TfEvents::default();
    log.chunks(usize::from(*first) + 1).for_each(|chunk| pieces.feed(chunk));
    assert_eq!(pieces.finish(), trace);
});
