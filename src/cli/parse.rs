//! `parse FILE`: what a log says.

use std::{fmt::Write as _, io::Read, path::Path};

use super::{
    args::{Globals, ParseArgs},
    output::{answer, print},
    project,
};
use crate::{
    error::{Error, Problem, Result, did_you_mean, exit},
    files::open_regular,
    import,
    logs::{self, GIB, LogSection, Parser, TelemetrySample, Trace},
    recipe::RecipeSet,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &ParseArgs) -> Result<i32> {
    let parser = match &args.format {
        Some(format) => parser(globals, format)?,
        None => Parser::detecting(),
    };
    let parser = match args.lines && !globals.json {
        true => parser.telling(|line, kind| drop(print(&format!("line {line}: {kind}\n")))),
        false => parser,
    };
    let trace = read(parser, &args.file)?;
    if trace.format == "unknown" && trace.failure.is_none() && trace.telemetry.is_empty() {
        let problem = Problem::new(format!("{}: no log format recognised", args.file.display()));
        if let Some(why) = import::why_not_read(&args.file) {
            let message = format!("{}: {why}", args.file.display());
            return Err(Error::invalid(Problem::new(message)));
        }
        if is_json(&args.file) {
            let help = format!(
                "a JSON file may be a result: `tprimat import {}` reads those",
                args.file.display()
            );
            return Err(Error::invalid(problem.help(help)));
        }
        return Err(Error::invalid(problem.help(format!(
            "formats: {}; `--format RECIPE` reads it with the `[log] patterns` of a recipe of the project",
            names().join(", ")
        ))));
    }
    answer(globals, "trace", &trace, || text(&trace))?;
    Ok(exit::OK)
}

/// One JSON value, as results are, and no log of JSON lines.
fn is_json(file: &Path) -> bool {
    crate::files::read(file)
        .is_ok_and(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).is_ok())
}

fn names() -> Vec<&'static str> {
    logs::names().chain(["tfevents"]).collect()
}

/// The parser of a format, or of a recipe of this project: its format with its patterns.
fn parser(globals: &Globals, format: &str) -> Result<Parser> {
    let known = Parser::new(&LogSection::named(format));
    let root = project::root(globals).ok().filter(|_| known.is_err());
    let recipes = root.map(|root| RecipeSet::load(&root)).transpose()?;
    if let Some(recipe) = recipes.and_then(|mut recipes| recipes.recipes.remove(format)) {
        let log = &recipe.file.log;
        return Parser::new(log).map_err(|error| Error::invalid(Problem::new(error.to_string())));
    }
    known.map_err(|_| {
        if format == "regex" {
            let problem = Problem::new("the format `regex` is made up by a recipe's patterns");
            let help = "name the recipe: `--format RECIPE` reads the log with its `[log] patterns`";
            return Error::invalid(problem.help(help));
        }
        let near = did_you_mean(format, names()).map_or_else(String::new, |near| near + " ");
        let help = format!("{near}formats: {}", names().join(", "));
        Error::refused(format!("`{format}` is not a log format"), help)
    })
}

/// Streams a file, or stdin where it is `-`, through a parser.
pub fn read(mut parser: Parser, file: &Path) -> Result<Trace> {
    let source: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        let (file, _) = open_regular(file).map_err(Error::io("cannot read", file))?;
        Box::new(file)
    };
    let read = import::chunks(source, |chunk| parser.feed(chunk));
    read.map_err(Error::io("cannot read", file))?;
    Ok(parser.finish())
}

fn text(trace: &Trace) -> String {
    let finished = if trace.finished { ", finished" } else { "" };
    let readings = trace.telemetry.len();
    let of_them = if readings > 0 {
        counted(readings, "reading")
    } else {
        counted(trace.steps.len(), "step")
    };
    let mut text = format!("format {}, {of_them}{finished}\n", trace.format);
    if readings > 0 {
        text += &telemetry(&trace.telemetry);
    }
    for (name, value) in &trace.effective.0 {
        let _ = writeln!(text, "  {name} = {value}");
    }
    for step in &trace.steps {
        let show = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.6}"));
        let _ = writeln!(
            text,
            "step {:>6}  {} s  loss {}  lr {}  grad norm {}",
            step.step,
            show(step.step_time_seconds),
            show(step.loss),
            step.learning_rate
                .map_or_else(|| "–".to_owned(), |v| format!("{v:.3e}")),
            show(step.grad_norm)
        );
    }
    for anomaly in &trace.anomalies {
        let _ = writeln!(text, "anomaly {}: {}", anomaly.kind, anomaly.detail);
    }
    if let Some(failure) = &trace.failure {
        let _ = writeln!(
            text,
            "failure {}: {}",
            failure.class.name(),
            failure.evidence.join(" | ")
        );
    }
    text
}

/// Readings of devices as a table; columns that no reading fills are left out.
fn telemetry(samples: &[TelemetrySample]) -> String {
    let plain = |value: Option<f64>| value.map(|v| v.to_string());
    let gib = |bytes: Option<u64>| bytes.map(|b| format!("{:.2}", b as f64 / GIB));
    type Show<'a> = &'a dyn Fn(&TelemetrySample) -> Option<String>;
    let columns: [(&str, Show<'_>); 11] = [
        ("time", &|s| s.timestamp.clone()),
        ("device", &|s| Some(s.device.clone())),
        ("name", &|s| s.name.clone()),
        ("power W", &|s| plain(s.power_watts)),
        ("limit W", &|s| plain(s.power_limit_watts)),
        ("memory GiB", &|s| gib(s.memory_used_bytes)),
        ("of GiB", &|s| gib(s.memory_total_bytes)),
        ("busy %", &|s| plain(s.utilization_percent)),
        ("temperature °C", &|s| plain(s.temperature_celsius)),
        ("clock MHz", &|s| plain(s.clock_mhz)),
        ("memory clock MHz", &|s| plain(s.memory_clock_mhz)),
    ];
    let used = columns
        .into_iter()
        .filter(|(_, show)| samples.iter().any(|s| show(s).is_some()));
    let used: Vec<_> = used.collect();
    let mut table = tabled::builder::Builder::default();
    table.push_record(used.iter().map(|(name, _)| (*name).to_owned()));
    for sample in samples {
        table.push_record(
            used.iter()
                .map(|(_, show)| show(sample).unwrap_or_else(|| "–".to_owned())),
        );
    }
    format!("{}\n", table.build().with(tabled::settings::Style::blank()))
}
