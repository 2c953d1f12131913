//! `parse FILE`: what a log says.

use std::{fmt::Write as _, io::Read};

use super::{
    args::ParseArgs,
    output::{print, print_json},
};
use crate::{
    error::{Error, Problem, Result, exit},
    parse,
};

pub fn run(args: &ParseArgs) -> Result<i32> {
    let bytes = if args.file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map_err(Error::io("cannot read", "stdin"))?;
        bytes
    } else {
        crate::files::read(&args.file)?
    };
    let known = || Problem::new("no known log format").help(format!("formats: {}", parse::FORMATS.join(", ")));
    let format = match &args.format {
        Some(format) if parse::FORMATS.contains(&format.as_str()) => format.as_str(),
        Some(format) => {
            let problem = Problem { message: format!("`{format}` is not a log format"), ..known() };
            return Err(Error::invalid(problem));
        }
        None => parse::detect(&bytes).ok_or_else(|| {
            Error::invalid(Problem { message: format!("{}: no log format recognised", args.file.display()), ..known() })
        })?,
    };
    let trace = parse::parse(format, &bytes);
    if args.json {
        print_json(&trace)?;
    } else {
        let mut text =
            format!("format {format}, {} steps{}\n", trace.steps.len(), if trace.finished { ", finished" } else { "" });
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
        print(&text)?;
    }
    Ok(exit::OK)
}
