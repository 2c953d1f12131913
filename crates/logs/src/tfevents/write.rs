//! Scalars as TensorBoard's event files hold them.

use super::record::{HEADER, masked_crc};

/// One value of one tag.
pub struct Scalar<'a> {
    pub tag: &'a str,
    pub step: u64,
    /// Seconds since 1970.
    pub time: f64,
    pub value: f64,
}

/// A whole event file.
#[must_use]
pub fn event_file(begun_at: f64, scalars: &[Scalar<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let version = [time(begun_at), field(3, b"brain.Event:2")].concat();
    record(&mut out, &version);
    for scalar in scalars {
        let mut value = field(1, scalar.tag.as_bytes());
        value.push(2 << 3 | 5);
        #[expect(clippy::cast_possible_truncation, reason = "the format has 32 bits")]
        value.extend((scalar.value as f32).to_le_bytes());
        let mut event = time(scalar.time);
        event.push(2 << 3);
        varint(scalar.step, &mut event);
        event.extend(field(5, &field(1, &value)));
        record(&mut out, &event);
    }
    out
}

fn record(out: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    out.reserve(HEADER + data.len() + 4);
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
}

fn time(seconds: f64) -> Vec<u8> {
    let mut out = vec![1 << 3 | 1];
    out.extend(seconds.to_le_bytes());
    out
}

/// Bytes as a protobuf field.
fn field(number: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(data.len() as u64, &mut out);
    out.extend(data);
    out
}

fn varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(tag: &'static str, step: u64, value: f64) -> Scalar<'static> {
        Scalar {
            tag,
            step,
            time: 1.7e9,
            value,
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let file = event_file(
            1.7e9,
            &[
                scalar("train/loss", 1, 9.5),
                scalar("perf/step_time_seconds", 1, 0.25),
                scalar("train/loss", 2, 8.5),
            ],
        );
        let trace = crate::tfevents(&file);
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.step_time_seconds, s.loss))
            .collect();
        assert_eq!(steps, [(1, Some(0.25), Some(9.5)), (2, None, Some(8.5))]);
        assert_eq!(crate::testing::kinds(&trace), Vec::<&str>::new());
    }

    #[test]
    fn what_cannot_be_is_noted() {
        let file = event_file(
            1.7e9,
            &[
                scalar("perf/step_time_seconds", 1, 0.0),
                scalar("lm loss validation", 1, f64::NAN),
            ],
        );
        let trace = crate::tfevents(&file);
        let notes: Vec<_> = trace.anomalies.iter().map(|a| (&*a.kind, a.step)).collect();
        assert_eq!(
            notes,
            [
                (crate::ABSURD_STEP_TIME, Some(1)),
                ("nan_evaluation", Some(1))
            ]
        );
    }
}
