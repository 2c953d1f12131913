//! `history [CELL…]`: every measurement of a cell that the cache has, and what was changed between
//! them.

use std::{collections::BTreeSet, path::Path};

use super::{
    args::{Globals, HistoryArgs},
    blocked,
    output::{page, print, print_document},
    session::Project,
    targets::refuse_in_project,
};
use crate::{
    cache::Cache,
    config::Config,
    error::{Error, Problem, Result, Source, exit},
    execute::history::{Histories, Warmups, cells_with_attempts, histories},
    figures::History,
    files::{Durability, unix_now, write_atomically},
    import::Imports,
    matrix::{Cell, Selection, glob},
    plan::Plan,
    report,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &HistoryArgs) -> Result<i32> {
    let since = args
        .since
        .as_deref()
        .map(|text| moment(text, unix_now()))
        .transpose()?;
    let format = args.output.as_deref().map(Format::of).transpose()?;
    let project = Project::open(globals, &[])?;
    let (config, cache) = (&project.config, project.cache()?);
    let wanted = wanted(&cache, config, &args.cells)?;
    let host = args
        .host
        .as_deref()
        .map(|text| glob("--host", text))
        .transpose()?;
    // A history needs no matrix: where there is none, or a wrong one, what was recorded has to do.
    let plan = Plan::load(&project.request).ok();
    let warmups = Warmups::of(plan.as_ref(), config);
    let is_wanted = |cell: &str| wanted.as_ref().is_none_or(|wanted| wanted.contains(cell));
    let is_host = |name: &str| host.as_ref().is_none_or(|glob| glob.is_match(name));
    let Histories { mut cells, guessed } = histories(&cache, &warmups, is_wanted, is_host)?;
    if cells.is_empty() && cells_with_attempts(&cache).is_empty() {
        return Err(nothing_measured(&cache));
    }
    cells.retain(|cell| !report::from(cell, since).is_empty());
    if !guessed.is_empty() {
        let names: Vec<&str> = guessed.iter().map(String::as_str).collect();
        let absent = plan.map_or_else(
            || "there is no matrix".to_owned(),
            |plan| format!("the matrix `{}` does not have them", plan.matrix.name),
        );
        eprintln!(
            "note: nothing says how many steps of {} are warm-up: {absent}, and no build summarised them. \
             {} of config.yaml were left out (benchmarking.warmup.skip_steps).",
            blocked::few(&names),
            counted(
                usize::try_from(warmups.otherwise.warmup_steps).unwrap_or(usize::MAX),
                "step"
            ),
        );
    }
    if cells.is_empty() {
        return Err(Error::NothingSelected {
            message: "nothing was measured that fits --since and --host".to_owned(),
            help: Some("`tprimat history` without them shows all measurements".to_owned()),
        });
    }
    if let (Some(path), Some(format)) = (args.output.as_deref(), format) {
        refuse_in_project(project.root(), cache.root(), "-o", path)?;
        let picture = report::history_picture(&cells, since)?;
        let bytes = match format {
            Format::Svg => picture.svg.as_bytes(),
            Format::Png => &picture.png,
        };
        write_atomically(path, bytes, Durability::Plain)?;
        eprintln!("the speed over time is drawn in {}", path.display());
    }
    if globals.json {
        if let Some(since) = since {
            cells
                .iter_mut()
                .for_each(|cell| cell.measurements.retain(|m| m.started_at >= since));
        }
        print_document(&History::of(cells))?;
    } else {
        print(&report::history_text(
            &cells,
            since,
            !args.cells.is_empty(),
            &page(),
        ))?;
    }
    Ok(exit::OK)
}

fn nothing_measured(cache: &Cache) -> Error {
    let (message, help) = if Imports::of(cache).cells().next().is_some() {
        (
            "no run of this project is in the cache, and imported runs have no history",
            "`tprimat compare --imported` compares them",
        )
    } else {
        ("nothing was measured yet", "`tprimat build` measures")
    };
    Error::NothingSelected {
        message: message.to_owned(),
        help: Some(help.to_owned()),
    }
}

/// The names of the cells that were asked for; `None` = all.
fn wanted(cache: &Cache, config: &Config, asked: &[String]) -> Result<Option<BTreeSet<String>>> {
    if asked.is_empty() {
        return Ok(None);
    }
    let known: BTreeSet<String> = cells_with_attempts(cache).into_iter().collect();
    if known.is_empty() {
        return Err(nothing_measured(cache));
    }
    let imports = Imports::of(cache);
    let is_import = |id: &&String| !known.contains(*id) && imports.named_kept(id).is_some();
    if let Some(id) = asked.iter().find(is_import)
        && !known.iter().any(|cell| cell.starts_with(id.as_str()))
    {
        return Err(Error::NothingSelected {
            message: format!("`{id}` was imported, and imported runs have no history"),
            help: Some(format!(
                "`tprimat attempts {id}` lists its imports; `tprimat compare --imported` compares them"
            )),
        });
    }
    if asked.iter().all(|id| known.contains(id)) {
        return Ok(Some(asked.iter().cloned().collect()));
    }
    let cells: Vec<Cell> = known.iter().map(|id| cell(config, id)).collect();
    let selection = Selection {
        only: asked.to_vec(),
        ..Selection::default()
    };
    let selected = selection.select(&cells)?;
    let selected = known
        .into_iter()
        .zip(selected)
        .filter(|(_, selected)| *selected);
    Ok(Some(selected.map(|(id, _)| id).collect()))
}

/// A cell of the cache as selections see it; it need not be in any matrix.
fn cell(config: &Config, id: &str) -> Cell {
    let cell = Cell::of_id(id);
    Cell {
        vendor: config.vendor(&cell.platform).unwrap_or(cell.vendor),
        ..cell
    }
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
                let problem = Problem::new(format!(
                    "-o {}: a picture is an .svg or a .png",
                    path.display()
                ));
                Err(Error::invalid(
                    problem.help("name the file so: -o history.svg"),
                ))
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
    let at = |time: Option<jiff::civil::DateTime>| {
        Some(time?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    let date = text
        .parse::<jiff::civil::Date>()
        .ok()
        .map(|date| date.at(0, 0, 0, 0));
    let time = text
        .parse()
        .ok()
        .or_else(|| at(text.parse().ok()))
        .or_else(|| at(date));
    let seconds = ago.or_else(|| time.map(|time: jiff::Timestamp| time.as_second() as f64));
    seconds.ok_or_else(|| {
        let problem = Problem::new(format!("--since {text} is not a time"));
        let problem = problem.at(
            &Source::new("--since", text),
            0..text.len(),
            "a date or an age is expected here",
        );
        Error::invalid(
            problem.help("as in --since 2026-10-02, --since 2026-10-02T18:30 (UTC), --since 30d"),
        )
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
