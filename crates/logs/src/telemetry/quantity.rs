//! One cell or value of a tool's output: a number with its unit, or the statement that there is
//! none.

use crate::{
    TelemetrySample,
    numbers::{self, GIB, MIB, number},
};

/// What a reading is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Power,
    PowerLimit,
    Energy,
    MemoryUsed,
    MemoryTotal,
    Utilization,
    Temperature,
    Clock,
    MemoryClock,
}

/// `110W`, `78942 MiB`, `(132Mhz)`, `51.0°C`: the number and its unit. `[N/A]`, `-`, `ERR!`, … are
/// none.
pub fn quantity(text: &str) -> Option<(f64, &str)> {
    let text = text.trim().trim_start_matches('(').trim_end_matches(')');
    let (value, unit) = number(text)?;
    Some((value, unit.trim())).filter(|(value, _)| value.is_finite())
}

/// Puts a reading into its field of `sample`, if its unit fits. `unit` is that of the heading,
/// where the value has none.
pub fn set(sample: &mut TelemetrySample, field: Field, text: &str, unit: &str) {
    if let Some((value, own)) = quantity(text) {
        put(
            sample,
            field,
            value,
            if own.is_empty() { unit } else { own },
        );
    }
}

pub fn put(sample: &mut TelemetrySample, field: Field, value: f64, unit: &str) {
    let unit = unit.trim_start_matches('°').to_ascii_lowercase();
    let unit = unit.as_str();
    let among = |units: &[&str]| unit.is_empty() || units.contains(&unit);
    let plain = Some(value).filter(|v| *v >= 0.0);
    match field {
        Field::Power if among(&["w"]) => sample.power_watts = plain,
        Field::PowerLimit if among(&["w"]) => sample.power_limit_watts = plain,
        Field::Energy if unit == "j" => sample.energy_joules = plain,
        Field::Energy if unit == "uj" => {
            sample.energy_joules = plain.map(|microjoules| microjoules / 1e6)
        }
        Field::Utilization if among(&["%"]) => {
            sample.utilization_percent = plain.filter(|v| *v <= 100.0)
        }
        Field::Temperature if among(&["c"]) => sample.temperature_celsius = Some(value),
        Field::Clock if among(&["mhz"]) => sample.clock_mhz = plain,
        Field::MemoryClock if among(&["mhz"]) => sample.memory_clock_mhz = plain,
        Field::MemoryUsed => {
            sample.memory_used_bytes = memory(value, unit).or(sample.memory_used_bytes)
        }
        Field::MemoryTotal => {
            sample.memory_total_bytes = memory(value, unit)
                .filter(|n| *n > 0)
                .or(sample.memory_total_bytes);
        }
        _ => {}
    }
}

/// All of these tools divide by powers of 1024, and some write MB and GB.
fn memory(value: f64, unit: &str) -> Option<u64> {
    let scale = match unit {
        "b" | "bytes" => 1.0,
        "kib" | "kb" => 1024.0,
        "mib" | "mb" => MIB,
        "gib" | "gb" => GIB,
        _ => return None,
    };
    numbers::bytes(value, scale)
}

/// Has the sample anything but its device's name?
pub fn says_something(sample: &TelemetrySample) -> bool {
    sample.power_watts.is_some()
        || sample.power_limit_watts.is_some()
        || sample.energy_joules.is_some()
        || sample.memory_used_bytes.is_some()
        || sample.memory_total_bytes.is_some()
        || sample.utilization_percent.is_some()
        || sample.temperature_celsius.is_some()
        || sample.clock_mhz.is_some()
        || sample.memory_clock_mhz.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_decide_and_what_is_not_there_is_absent() {
        let mut sample = TelemetrySample::default();
        set(&mut sample, Field::Power, "110W", "");
        set(&mut sample, Field::MemoryUsed, " 78942 MiB", "");
        set(&mut sample, Field::MemoryTotal, "196300", "MB");
        set(&mut sample, Field::Temperature, "51.0°C", "");
        set(&mut sample, Field::Clock, "(132Mhz)", "");
        for nothing in [
            "[N/A]",
            "N/A",
            "-",
            "ERR!",
            "[Not Supported]",
            "",
            "Unsupported",
        ] {
            set(&mut sample, Field::Utilization, nothing, "%");
            set(&mut sample, Field::Power, nothing, "W");
        }
        set(&mut sample, Field::PowerLimit, "5 MHz", "");
        assert_eq!(sample.power_watts, Some(110.0));
        assert_eq!(sample.memory_used_bytes, Some(78942 << 20));
        assert_eq!(sample.memory_total_bytes, Some(196_300 << 20));
        assert_eq!(
            (sample.temperature_celsius, sample.clock_mhz),
            (Some(51.0), Some(132.0))
        );
        assert_eq!(
            (sample.utilization_percent, sample.power_limit_watts),
            (None, None)
        );
        let mut zero = TelemetrySample::default();
        set(&mut zero, Field::Utilization, "0 %", "");
        assert_eq!(zero.utilization_percent, Some(0.0), "a stated 0 is a 0");
        set(&mut zero, Field::MemoryUsed, "5", "");
        assert_eq!(
            zero.memory_used_bytes, None,
            "memory without a unit says nothing"
        );
    }
}
