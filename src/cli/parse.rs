//! `parse FILE`: what a log says.

use std::{fmt::Write as _, fs::File, io::Read, path::Path};

use super::{
    args::ParseArgs,
    output::{print, print_json},
};
use crate::{
    error::{Error, Problem, Result, exit},
    parse::{self, LogSection, Parser, Trace},
};

const CHUNK: usize = 1 << 20;

pub fn run(args: &ParseArgs) -> Result<i32> {
    let parser = match &args.format {
        Some(format) => Parser::new(&LogSection::named(format)).map_err(|_| not_a_format(format))?,
        None => Parser::detecting(),
    };
    let trace = read(parser, &args.file)?;
    if trace.format == "unknown" && trace.failure.is_none() && trace.telemetry.is_empty() {
        let problem = Problem::new(format!("{}: no log format recognised", args.file.display()));
        return Err(Error::invalid(problem.help(format!("formats: {}", names().join(", ")))));
    }
    if args.json {
        print_json(&trace)?
    } else {
        print(&text(&trace))?
    }
    Ok(exit::OK)
}

fn names() -> Vec<&'static str> {
    parse::names().collect()
}

fn not_a_format(format: &str) -> Error {
    let near = crate::error::nearest(format, names()).map(|n| format!("did you mean `{n}`? "));
    let help = format!("{}formats: {}", near.unwrap_or_default(), names().join(", "));
    Error::invalid(Problem::new(format!("`{format}` is not a log format")).help(help))
}

/// Streams a file, or stdin where it is `-`, through a parser.
pub fn read(mut parser: Parser, file: &Path) -> Result<Trace> {
    let mut source: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(file).map_err(Error::io("cannot read", file))?)
    };
    let mut chunk = vec![0; CHUNK];
    loop {
        match source.read(&mut chunk) {
            Ok(0) => return Ok(parser.finish()),
            Ok(n) => parser.feed(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("cannot read", file)(e)),
        }
    }
}

fn text(trace: &Trace) -> String {
    let finished = if trace.finished { ", finished" } else { "" };
    let mut text = format!("format {}, {} steps{finished}\n", trace.format, trace.steps.len());
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
            step.learning_rate.map_or_else(|| "–".to_owned(), |v| format!("{v:.3e}")),
            show(step.grad_norm)
        );
    }
    for anomaly in &trace.anomalies {
        let _ = writeln!(text, "anomaly {}: {}", anomaly.kind, anomaly.detail);
    }
    if let Some(failure) = &trace.failure {
        let _ = writeln!(text, "failure {}: {}", failure.class.name(), failure.evidence.join(" | "));
    }
    text
}
