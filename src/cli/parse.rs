//! `parse FILE`: what a log says.

use std::{
    fmt::Write as _,
    io::{Read, Seek, SeekFrom},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    args::{Globals, ParseArgs},
    output::{answer, print},
    project,
};
use crate::{
    config::Config,
    error::{Error, Problem, Result, Source, did_you_mean, exit},
    files::open_regular,
    import,
    logs::{self, GIB, LogSection, Parser, Suggestion, TelemetrySample, Trace, suggest},
    recipe::RecipeSet,
    words::{self, plain::counted},
};

pub fn run(globals: &Globals, args: &ParseArgs) -> Result<i32> {
    let parser = match &args.format {
        Some(format) => parser(globals, format)?,
        None => Parser::detecting(),
    };
    if args.lines && globals.json {
        return Err(Error::refused(
            "--lines prints lines, and --json one value",
            "give one of the two",
        ));
    }
    let unwritten = Arc::new(Mutex::new(None));
    let parser = match args.lines {
        true => {
            let unwritten = unwritten.clone();
            parser.telling(move |line, kind| {
                if let Err(error) = print(&format!("line {line}: {kind}\n")) {
                    let mut first = unwritten.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(error);
                }
            })
        }
        false => parser,
    };
    let trace = read(parser, &args.file)?;
    let unwritten = unwritten
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(error) = unwritten {
        return Err(error);
    }
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
        return Err(Error::invalid(problem.help(suggested(&args.file))));
    }
    let has_nothing =
        trace.steps.is_empty() && trace.failure.is_none() && trace.telemetry.is_empty();
    if args.format.is_some() && has_nothing && trace.effective.0.is_empty() {
        let problem = Problem::new(format!("{}: no line reads so", args.file.display()));
        return Err(Error::invalid(problem.help(suggested(&args.file))));
    }
    answer(globals, "trace", &trace, || text(&trace))?;
    Ok(exit::OK)
}

/// How a log that no format reads can be read: by a line with places, where it repeats one.
fn suggested(file: &Path) -> String {
    const MOST_SHOWN: usize = 160;
    let lines = end_of(file).unwrap_or_default();
    let shown = |line: &str| -> String {
        let line: String = line.trim_end().chars().take(MOST_SHOWN).collect();
        format!("  {}", words::plain::line(&line))
    };
    if let Some(Suggestion {
        line,
        alike,
        pattern,
        has_rate,
    }) = suggest(&lines)
    {
        let lack = match has_rate {
            true => "",
            false => {
                "\nIt gives no rate: let the trainer print the time of a step or tokens/s as well"
            }
        };
        return format!(
            "{alike} of its last {} differ in their numbers only:\n{}\nBeside the command in config.yaml, or as `--format \
             LINE`, this line reads them:\n  log: \"{pattern}\"{lack}",
            counted(lines.len(), "line"),
            shown(&line),
        );
    }
    let last = lines.iter().filter(|line| !line.trim().is_empty());
    let last: Vec<String> = last.rev().take(3).map(|line| shown(line)).collect();
    let last: Vec<String> = last.into_iter().rev().collect();
    format!(
        "formats: {}; `--format 'step <step> loss <loss>'` reads lines of your own. It ends:\n{}",
        names().join(", "),
        last.join("\n")
    )
}

/// The last lines of a file.
fn end_of(file: &Path) -> std::io::Result<Vec<String>> {
    const LOOKED_AT: u64 = 64 << 10;
    let (mut file, _) = open_regular(file)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LOOKED_AT)))?;
    let mut bytes = Vec::new();
    file.take(LOOKED_AT).read_to_end(&mut bytes)?;
    Ok(logs::tail(&bytes))
}

/// One JSON value, as results are, and no log of JSON lines.
fn is_json(file: &Path) -> bool {
    crate::files::read(file)
        .is_ok_and(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).is_ok())
}

fn names() -> Vec<&'static str> {
    logs::names().chain(["tfevents"]).collect()
}

/// The recipes of a project, and the commands of its config.yaml.
fn recipes(root: &Path) -> Result<RecipeSet> {
    let mut recipes = RecipeSet::load(root)?;
    let text = crate::files::read_to_string(&root.join("config.yaml"))?;
    let source = Source::new("config.yaml", text);
    recipes.add_commands(&Config::load(source, &project::environment(), &[])?)?;
    Ok(recipes)
}

/// The parser of a format, or of a recipe of this project: its format with its patterns.
fn parser(globals: &Globals, format: &str) -> Result<Parser> {
    if format.contains(['<', '(']) {
        let section = LogSection::of_lines(&[format]);
        return Parser::new(&section).map_err(|wrong| Error::invalid(Problem::new(wrong)));
    }
    let known = Parser::new(&LogSection::named(format));
    let root = project::root(globals).ok().filter(|_| known.is_err());
    let recipes = root.map(|root| recipes(&root)).transpose()?;
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
        let rate = |rate: Option<f64>, of: &str| rate.map(|rate| format!("{rate:.0} tokens/s{of}"));
        let of_all = step.other.get(logs::TOTAL_RATE).copied();
        let speed = match step.step_time_seconds {
            None => rate(step.tokens_per_second_per_gpu, " per device").or(rate(of_all, "")),
            Some(_) => None,
        };
        let speed = speed.unwrap_or_else(|| show(step.step_time_seconds) + " s");
        let _ = writeln!(
            text,
            "step {:>6}  {speed}  loss {}  lr {}  grad norm {}",
            step.step,
            show(step.loss),
            step.learning_rate
                .map_or_else(|| "–".to_owned(), |v| format!("{v:.3e}")),
            show(step.grad_norm)
        );
    }
    for (name, value) in &trace.totals {
        let _ = writeln!(text, "total {name} = {value}");
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
