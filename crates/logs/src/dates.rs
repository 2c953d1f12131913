//! The date before a line's words, as loggers and collectors of logs write it.
//!
//! Clocks of logs have no zone mostly, so a date is good for comparing lines of one log, and to some hours for saying
//! when it was written.

use jiff::civil::Date;

/// Bytes of a line that its date is looked for in.
pub const REACH: usize = 160;

/// Seconds since 1970, by whatever clock wrote them; of several dates the last one is the trainer's own.
pub fn of(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let bytes = &bytes[..bytes.len().min(REACH)];
    let (mut found, mut at) = (None, 0);
    while let Some(colon) = memchr::memchr(b':', &bytes[at..]) {
        let colon = at + colon;
        at = colon + 1;
        if let Some((date, end)) = around(bytes, colon) {
            (found, at) = (Some(date), end);
        }
    }
    found
}

/// What stands behind the date that Docker and Kubernetes write before each line of a process: `2026-01-31T10:00:20.5Z `.
pub fn behind_collector(text: &str) -> &str {
    let has_date = text.as_bytes().get(10) == Some(&b'T');
    match text.split_once(' ').filter(|_| has_date) {
        Some((date, rest)) if date.ends_with('Z') && of(date).is_some() => rest,
        _ => text,
    }
}

/// The date whose first colon is at `colon`, and where it ends.
fn around(bytes: &[u8], colon: usize) -> Option<(f64, usize)> {
    let start = colon.checked_sub(2)?;
    let hour = digits(bytes, start, 2)?;
    let minute = digits(bytes, colon + 1, 2)?;
    let second = digits(bytes, colon + 4, 2).filter(|_| bytes.get(colon + 3) == Some(&b':'))?;
    if hour > 24 || minute > 59 || second > 60 {
        return None;
    }
    let days = day_before(bytes.get(..start)?)?;
    let mut end = colon + 6;
    let mut time = (days * 86_400 + hour * 3600 + minute * 60 + second) as f64;
    if matches!(bytes.get(end), Some(b'.' | b',')) {
        let places = bytes[end + 1..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count();
        if let Some(part) = digits(bytes, end + 1, places.min(9)).filter(|_| places > 0) {
            time += part as f64 / 10f64.powi(places.min(9) as i32);
            end += 1 + places;
        }
    }
    // Only an offset is a zone: what follows a name may be anything.
    let sign = match bytes.get(end) {
        Some(b'+') => 1.0,
        Some(b'-') => -1.0,
        _ => return Some((time, end)),
    };
    let hours = digits(bytes, end + 1, 2);
    let minutes = digits(bytes, end + 3, 2).or_else(|| digits(bytes, end + 4, 2));
    if let (Some(hours), Some(minutes)) = (hours, minutes) {
        time -= sign * (hours * 3600 + minutes * 60) as f64;
    }
    Some((time, end))
}

/// Days since 1970 of the date that `bytes` ends with: `2026-01-31`, `2026/01/31`, `20260131`, `01/31/2026`, glog's
/// `I0131`, each with one character behind it, or syslog's `Jan 31 `.
fn day_before(bytes: &[u8]) -> Option<i64> {
    let (separator, date) = bytes.split_last()?;
    if !matches!(separator, b' ' | b'T' | b't' | b'_' | b'-') {
        return None;
    }
    let from_end = |back: usize, count: usize| digits(date, date.len().checked_sub(back)?, count);
    let is = |back: usize, wanted: &[u8]| {
        let at = date.len().checked_sub(back);
        at.is_some_and(|at| wanted.contains(&date[at]))
    };
    let parted = |at: [usize; 2]| at.into_iter().all(|back| is(back, b"-/."));
    let ymd = if parted([6, 3]) && from_end(10, 4).is_some() {
        Some((from_end(10, 4)?, from_end(5, 2)?, from_end(2, 2)?))
    } else if parted([8, 5]) && from_end(4, 4).is_some() {
        Some((from_end(4, 4)?, from_end(10, 2)?, from_end(7, 2)?))
    } else if let Some(year) = from_end(8, 4).filter(|_| from_end(8, 8).is_some()) {
        Some((year, from_end(4, 2)?, from_end(2, 2)?))
    } else if is(5, b"IWEF") {
        // Without its year, in one that has all days.
        Some((1972, from_end(4, 2)?, from_end(2, 2)?))
    } else {
        named(date)
    };
    let (year, month, day) = ymd?;
    days(year, month, day)
}

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// `Jan 31`, without a year.
fn named(date: &[u8]) -> Option<(i64, i64, i64)> {
    let name = date.get(date.len().checked_sub(6)?..date.len() - 3)?;
    let month = MONTHS.iter().position(|month| *month == name)?;
    let day = match &date[date.len() - 3..] {
        [b' ', b' ', one] if one.is_ascii_digit() => i64::from(one - b'0'),
        [b' ', ..] => digits(date, date.len() - 2, 2)?,
        _ => return None,
    };
    Some((1972, i64::try_from(month).ok()? + 1, day))
}

/// The number of `count` digits at `at`.
fn digits(bytes: &[u8], at: usize, count: usize) -> Option<i64> {
    let text = bytes.get(at..at.checked_add(count)?)?;
    let digit = |sum: i64, byte: &u8| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + i64::from(byte - b'0'))
    };
    text.iter().try_fold(0, digit)
}

/// Days from 1970-01-01 to a day of the calendar; none where there is no such day.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let year = i16::try_from(year)
        .ok()
        .filter(|y| (1970..2200).contains(y))?;
    let date = Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
    Some(
        date.duration_since(jiff::civil::date(1970, 1, 1))
            .as_hours()
            / 24,
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_as_loggers_write_them() {
        // date -u -d '2026-08-04 10:00:20' +%s
        let noon = 1_785_837_620.0;
        for (line, date) in [
            (" [2026-08-04 10:00:20.000000] iteration 51/ 60 |", noon),
            (
                "[rank0]:[titan] 2026-08-04 10:00:20,250 - root - INFO - step: 1",
                noon + 0.25,
            ),
            ("[20260804 10:00:20][rank-7/8][INFO ] iteration", noon),
            ("2026-08-04T10:00:20.5Z step 1", noon + 0.5),
            ("2026-08-04T12:00:20+02:00 step 1", noon),
            ("08/04/2026 10:00:20 - INFO - step", noon),
            ("DLL 2026-08-04 10:00:20.750 - 3 loss : 1", noon + 0.75),
            // A collector's date, and then the trainer's.
            ("2026-08-04T10:00:29Z [2026-08-04 10:00:20] step", noon),
        ] {
            assert_eq!(of(line), Some(date), "{line}");
        }
        let apart = |a: &str, b: &str| of(b).unwrap() - of(a).unwrap();
        assert_eq!(
            apart("I0831 23:59:59.500000 7 x", "I0901 00:00:01.500000 7 x"),
            2.0
        );
        assert_eq!(
            apart("Nov  7 07:45:23 host x", "Nov 17 07:45:23 host x"),
            864_000.0
        );
        for none in [
            "iteration 1/ 2 | 0:00:07",
            "1 day, 10:00:20",
            "ETA 10:00:20",
            "99990804 10:00:20",
            "é:00:00 10:é",
            "",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(days(2000, 3, 1), Some(11_017));
        assert_eq!(days(2026, 2, 30), None);
    }

    proptest! {
        #[test]
        fn never_panics(line in "[0-9:/. T+,éJan-]{0,60}") {
            let _ = of(&line);
        }
    }
}
