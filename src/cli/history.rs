//! `history [CELL…]`: every measurement of a cell that the cache has, and what was changed between them.

use std::{path::Path, sync::Arc};

use globset::Glob;
use serde_json::Value;

use super::{
    args::HistoryArgs,
    attempts,
    output::{page, print, print_json},
    targets::refuse_in_project,
};
use crate::{
    analyze::{History, Statistics},
    cache::Cache,
    config::Config,
    error::{Error, Problem, Result, Source, exit},
    execute::history::{cells_with_attempts, histories},
    files::{Durability, unix_now, write_atomically},
    matrix::{Cell, Selection},
    plan::Vendor,
    report,
};

pub fn run(at: Option<&Path>, args: &HistoryArgs) -> Result<i32> {
    let since = args.since.as_deref().map(|text| moment(text, unix_now())).transpose()?;
    let format = args.output.as_deref().map(Format::of).transpose()?;
    let (root, config) = attempts::load_config(at)?;
    let cache = attempts::cache_of(&root, &config)?;
    let wanted = wanted(&cache, &config, &args.cells)?;
    let host = args.host.as_deref().map(glob).transpose()?;
    let steps = config.get("benchmarking.warmup.skip_steps").and_then(Value::as_u64);
    let statistics = Statistics { warmup_steps: steps.unwrap_or(0) };
    let is_host = |name: &str| host.as_ref().is_none_or(|glob| glob.is_match(name));
    let mut cells = histories(&cache, &statistics, |cell| wanted.iter().any(|id| id == cell), is_host)?;
    cells.retain(|cell| !report::from(cell, since).is_empty());
    if cells.is_empty() {
        return Err(Error::NothingSelected {
            message: "nothing was measured that fits --since and --host".to_owned(),
            help: Some("`tprimat history` without them shows all measurements".to_owned()),
        });
    }
    if let (Some(path), Some(format)) = (args.output.as_deref(), format) {
        refuse_in_project(&root, cache.root(), "-o", path)?;
        let picture = report::history_picture(&cells, since)?;
        let bytes = match format {
            Format::Svg => picture.svg.as_bytes(),
            Format::Png => &picture.png,
        };
        write_atomically(path, bytes, Durability::Plain)?;
        eprintln!("the speed over time is drawn in {}", path.display());
    }
    if args.json {
        if let Some(since) = since {
            cells.iter_mut().for_each(|cell| cell.measurements.retain(|m| m.started_at >= since));
        }
        print_json(&History::of(cells))?;
    } else {
        print(&report::history_text(&cells, since, !args.cells.is_empty(), &page()))?;
    }
    Ok(exit::OK)
}

/// The names of the cells that were asked for; of all where none was.
fn wanted(cache: &Cache, config: &Config, asked: &[String]) -> Result<Vec<String>> {
    let known = cells_with_attempts(cache);
    if known.is_empty() {
        let message = "nothing was measured yet".to_owned();
        return Err(Error::NothingSelected { message, help: Some("`tprimat build` measures".to_owned()) });
    }
    if asked.is_empty() || asked.iter().all(|id| known.contains(id)) {
        return Ok(if asked.is_empty() { known } else { asked.to_vec() });
    }
    let cells: Vec<Cell> = known.iter().filter_map(|id| cell(config, id)).collect();
    let selection = Selection { only: asked.to_vec(), ..Selection::default() };
    let selected = selection.select(&cells)?;
    Ok(cells.iter().zip(selected).filter(|(_, selected)| *selected).map(|(cell, _)| cell.to_string()).collect())
}

/// A cell of the cache as selections see it; it need not be in any matrix.
fn cell(config: &Config, id: &str) -> Option<Cell> {
    let (path, axes) = id.split_once('@').unwrap_or((id, ""));
    let mut parts = path.split('/').map(Arc::from);
    let [platform, framework, model, parallelism] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let axes = axes.split(',').filter_map(|axis| axis.split_once('='));
    let vendor = config.vendor(&platform).unwrap_or(Vendor::Cpu);
    let axes = axes.map(|(name, value)| (name.into(), value.into())).collect();
    Some(Cell { platform, vendor, framework, model, parallelism, axes, overlay: Vec::new(), repeats: 0 })
}

fn glob(text: &str) -> Result<globset::GlobMatcher> {
    Glob::new(text).map(|glob| glob.compile_matcher()).map_err(|error| {
        let problem = Problem::new(format!("--host {text}: {}", error.kind()));
        Error::invalid(problem.at(&Source::new("--host", text), 0..text.len(), "not a pattern"))
    })
}

#[derive(Clone, Copy)]
enum Format {
    Svg,
    Png,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => {
                let problem = Problem::new(format!("-o {}: a picture is an .svg or a .png", path.display()));
                Err(Error::invalid(problem.help("name the file so: -o history.svg")))
            }
        }
    }
}

/// `2026-10-02`, `2026-10-02T18:30`, or `30d` before `now`; in seconds since 1970.
fn moment(text: &str, now: f64) -> Result<f64> {
    const DAY: f64 = 86_400.0;
    let units = [("h", 3600.0), ("d", DAY), ("w", 7.0 * DAY)];
    let ago = units.into_iter().find_map(|(unit, seconds)| {
        let count: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (count.is_finite() && count >= 0.0).then_some(now - count * seconds)
    });
    let at = |time: Option<jiff::civil::DateTime>| Some(time?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp());
    let date = text.parse::<jiff::civil::Date>().ok().map(|date| date.at(0, 0, 0, 0));
    let time = text.parse().ok().or_else(|| at(text.parse().ok())).or_else(|| at(date));
    let seconds = ago.or_else(|| time.map(|time: jiff::Timestamp| time.as_second() as f64));
    seconds.ok_or_else(|| {
        let problem = Problem::new(format!("--since {text} is not a time"));
        let problem = problem.at(&Source::new("--since", text), 0..text.len(), "a date or an age is expected here");
        Error::invalid(problem.help("as in --since 2026-10-02, --since 2026-10-02T18:30 (UTC), --since 30d"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_or_ages() {
        let at = |text: &str| moment(text, 1e9).ok();
        assert_eq!(at("30d"), Some(1e9 - 30.0 * 86_400.0));
        assert_eq!(at("12h"), Some(1e9 - 43_200.0));
        assert_eq!(at("2026-10-02"), Some(1_790_899_200.0));
        assert_eq!(at("2026-10-02T01:00"), Some(1_790_902_800.0));
        assert_eq!(at("2026-10-02T01:00:00Z"), Some(1_790_902_800.0));
        for bad in ["", "d", "-3d", "yesterday", "nand"] {
            assert_eq!(at(bad), None, "{bad}");
        }
    }
}
