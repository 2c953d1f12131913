//! `data`: what a token file holds, and its content's name.

use std::{fmt::Write as _, path::Path};

use serde_json::json;

use super::{
    args::{DataCommand, Globals},
    output::answer,
};
use crate::{
    data::{self, Report, prefix_of},
    error::{Error, Problem, Result, exit},
};

pub fn run(globals: &Globals, command: &DataCommand) -> Result<i32> {
    match command {
        DataCommand::Verify { prefix, vocab_size } => verify(globals, prefix, *vocab_size),
        DataCommand::Fingerprint { prefix } => fingerprint(globals, prefix),
    }
}

fn verify(globals: &Globals, prefix: &Path, vocab_size: Option<u64>) -> Result<i32> {
    let report = data::verify(prefix, vocab_size)?;
    answer(globals, "dataset", &report, || table(&report))?;
    if report.problems.is_empty() {
        return Ok(exit::OK);
    }
    if globals.json {
        return Ok(exit::USAGE);
    }
    let prefix = prefix_of(prefix);
    Err(Error::Invalid(
        report
            .problems
            .iter()
            .map(|p| Problem::new(format!("{}: {p}", prefix.display())))
            .collect(),
    ))
}

fn fingerprint(globals: &Globals, prefix: &Path) -> Result<i32> {
    let (digest, report) = data::fingerprint(prefix)?;
    let value = json!({ "fingerprint": digest, "dtype": report.dtype, "sequences": report.sequences,
        "documents": report.documents, "tokens": report.tokens, "bytes": report.bytes });
    answer(globals, "fingerprint", &value, || {
        format!("{digest}\n{}", table(&report))
    })?;
    Ok(exit::OK)
}

fn table(report: &Report) -> String {
    let counts = [
        ("documents", report.documents),
        ("sequences", report.sequences),
        ("tokens", report.tokens),
    ];
    let mut text = String::new();
    for (name, count) in counts {
        let _ = writeln!(text, "{name:<12}{count}");
    }
    let _ = writeln!(
        text,
        "{:<12}{}, {} bytes",
        "stored as", report.dtype, report.bytes
    );
    if let (Some(min), Some(max)) = (report.min_token, report.max_token) {
        let _ = writeln!(text, "{:<12}{min} to {max}", "range");
    }
    for (name, count) in [
        ("sequences", report.empty_sequences),
        ("documents", report.empty_documents),
    ] {
        if count > 0 {
            let _ = writeln!(text, "note: {count} {name} are empty");
        }
    }
    text
}
