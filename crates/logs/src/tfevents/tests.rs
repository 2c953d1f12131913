use proptest::prelude::*;

use super::record::masked_crc;
use crate::{Parser, Trace, parse_any, testing, tfevents};

/// A varint field.
fn varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn bytes(field: u64, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(data.len() as u64, &mut out);
    out.extend_from_slice(data);
    out
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [
        &length[..],
        &masked_crc(&length).to_le_bytes(),
        data,
        &masked_crc(data).to_le_bytes(),
    ]
    .concat()
}

fn event(step: u64, value: &[u8]) -> Vec<u8> {
    let mut data = vec![1 << 3 | 1];
    data.extend_from_slice(&1.7e9f64.to_le_bytes());
    data.push(2 << 3);
    varint(step, &mut data);
    data.extend(bytes(5, &bytes(1, value)));
    record(&data)
}

fn simple(step: u64, tag: &str, value: f32) -> Vec<u8> {
    let mut inner = bytes(1, tag.as_bytes());
    inner.push(2 << 3 | 5);
    inner.extend_from_slice(&value.to_le_bytes());
    event(step, &inner)
}

fn tensor(step: u64, tag: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let tensor = [vec![1 << 3, kind], bytes(4, content)].concat();
    event(
        step,
        &[bytes(1, tag.as_bytes()), bytes(8, &tensor)].concat(),
    )
}

fn file() -> Vec<u8> {
    [
        record(&bytes(3, b"brain.Event:2")),
        simple(9, "lr", 0.25),
        simple(9, "global_batch_size", 16.0),
        simple(9, "reduced_train_loss", 11.5),
        simple(9, "train_step_timing in s", 1.75),
        simple(9, "consumed_samples", 160.0),
        simple(9, "num_zeros_in_grad", 5.0),
        simple(9, "lm loss vs samples", 3.0),
        tensor(19, "reduced_train_loss", 1, &10.5f32.to_le_bytes()),
        tensor(19, "train_step_timing in s", 2, &1.5f64.to_le_bytes()),
        tensor(19, "global_batch_size/text_summary", 7, b"16"),
        simple(19, "val_loss", 10.25),
        simple(29, "reduced_train_loss", f32::NAN),
    ]
    .concat()
}

fn check(trace: &Trace) {
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds, s.loss))
        .collect();
    assert_eq!(
        steps,
        [
            (9, Some(1.75), Some(11.5)),
            (19, Some(1.5), Some(10.5)),
            (29, None, None)
        ]
    );
    let first = &trace.steps[0];
    assert_eq!(
        (
            first.global_batch_size,
            first.consumed_samples,
            first.learning_rate
        ),
        (Some(16), Some(160), Some(0.25))
    );
    assert_eq!(
        first.other.keys().collect::<Vec<_>>(),
        ["num_zeros_in_grad"]
    );
    assert_eq!(
        (trace.evaluations[0].step, &*trace.evaluations[0].name),
        (Some(19), "validation_loss")
    );
}

#[test]
fn scalars_of_a_step_come_together() {
    let trace = tfevents(&file());
    check(&trace);
    assert_eq!(
        (trace.format.as_str(), testing::kinds(&trace)),
        ("tfevents", vec!["nan_loss"])
    );
}

#[test]
fn such_a_file_is_known_by_its_first_record_however_it_comes_in() {
    check(&parse_any(&file()));
    let mut parser = Parser::detecting();
    file().chunks(5).for_each(|piece| parser.feed(piece));
    check(&parser.finish());
    assert_eq!(parse_any(&file()[1..]).format, "unknown");
}

#[test]
fn damage_is_told_and_the_records_after_it_are_read() {
    let mut damaged = file();
    damaged.splice(0..0, *b"rubbish");
    check(&tfevents(&damaged));
    assert_eq!(testing::kinds(&tfevents(&damaged))[0], "damaged_record");

    let mut flipped = simple(1, "lr", 0.5);
    let last = flipped.len() - 6;
    flipped[last] ^= 1;
    let trace = tfevents(&[flipped, simple(2, "lr", 0.25)].concat());
    assert_eq!((trace.steps.len(), trace.steps[0].step), (1, 2));
    assert!(testing::kinds(&trace).contains(&"damaged_record"));

    let cut = tfevents(&file()[..file().len() - 3]);
    assert!(cut.steps.len() == 2 && testing::kinds(&cut).contains(&"truncated"));
    let long = tfevents(&[record(&vec![0; 2 << 20]), simple(2, "lr", 0.25)].concat());
    assert_eq!(
        (long.steps.len(), testing::kinds(&long)[0]),
        (1, "record_passed_over")
    );
}

#[test]
fn megatrons_times_are_means_over_its_log_interval() {
    let every = |gap: usize| -> Trace {
        let mut all = Vec::new();
        for step in (10..=40).step_by(gap) {
            all.extend(simple(step, "lm loss", 3.0));
            if step % 10 == 0 {
                all.extend(simple(step, "iteration-time", 0.5));
            }
        }
        tfevents(&all)
    };
    assert!(every(10).steps.iter().all(|s| s.steps_averaged == Some(10)));
    let mixed = every(5);
    assert!(mixed.steps.iter().all(|s| s.steps_averaged.is_none()));
    assert_eq!(testing::kinds(&mixed), ["averaged_step_time"]);
}

proptest! {
    #[test]
    fn never_panics_on_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = tfevents(&data);
        let _ = tfevents(&record(&data));
        let _ = tfevents(&event(3, &data));
    }

    #[test]
    fn damaged_files_are_read_the_same_in_pieces(
        edits in proptest::collection::vec((0..600usize, any::<u8>()), 0..12), size in 1usize..300, end in 0..700usize
    ) {
        let mut data = file();
        for (at, byte) in edits {
            if let Some(place) = data.get_mut(at) {
                *place = byte;
            }
        }
        data.truncate(end);
        let mut reader = crate::TfEvents::default();
        data.chunks(size).for_each(|piece| reader.feed(piece));
        prop_assert_eq!(reader.finish(), tfevents(&data));
    }
}
