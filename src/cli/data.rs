//! `data`: what a token file holds, and its content's name.

use std::fmt::Write as _;

use serde_json::json;

use super::{
    args::{DataArgs, DataCommand, FingerprintArgs, Globals, VerifyArgs},
    output::{print, print_json},
};
use crate::{
    data::{self, Report, prefix_of},
    error::{Error, Problem, Result, exit},
};

pub fn run(globals: &Globals, args: &DataArgs) -> Result<i32> {
    match &args.command {
        DataCommand::Verify(args) => verify(args, globals.json),
        DataCommand::Fingerprint(args) => fingerprint(args, globals.json),
    }
}

fn verify(args: &VerifyArgs, as_json: bool) -> Result<i32> {
    let report = data::verify(&args.prefix, args.vocab_size)?;
    if as_json {
        print_json("dataset", &report)?;
        return Ok(if report.problems.is_empty() {
            exit::OK
        } else {
            exit::USAGE
        });
    }
    print(&table(&report))?;
    if report.problems.is_empty() {
        return Ok(exit::OK);
    }
    let prefix = prefix_of(&args.prefix);
    Err(Error::Invalid(
        report
            .problems
            .iter()
            .map(|p| Problem::new(format!("{}: {p}", prefix.display())))
            .collect(),
    ))
}

fn fingerprint(args: &FingerprintArgs, as_json: bool) -> Result<i32> {
    let (digest, report) = data::fingerprint(&args.prefix)?;
    if as_json {
        print_json(
            "fingerprint",
            &json!({ "fingerprint": digest, "dtype": report.dtype, "sequences": report.sequences,
            "documents": report.documents, "tokens": report.tokens, "bytes": report.bytes }),
        )?;
    } else {
        print(&format!("{digest}\n{}", table(&report)))?;
    }
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
