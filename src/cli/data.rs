//! `data`: what a token file holds, its content's name, and token files from text.

use std::fmt::Write as _;

use serde_json::json;

use super::{
    args::{DataArgs, DataCommand, EncodeArgs, FingerprintArgs, Globals, VerifyArgs},
    output::{print, print_json},
};
#[cfg(feature = "encode")]
use crate::data::{Encode, Eod};
use crate::{
    data::{self, Report, prefix_of},
    error::{Error, Problem, Result, exit},
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &DataArgs) -> Result<i32> {
    match &args.command {
        DataCommand::Verify(args) => verify(args, globals.json),
        DataCommand::Fingerprint(args) => fingerprint(args, globals.json),
        DataCommand::Encode(args) => encode(args, globals.json),
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

#[cfg(not(feature = "encode"))]
fn encode(_: &EncodeArgs, _: bool) -> Result<i32> {
    Err(Error::Failed {
        message: "this tprimat was built without `data encode`".to_owned(),
        help: Some("build it with `--features encode`, which is on by default".to_owned()),
    })
}

#[cfg(feature = "encode")]
fn encode(args: &EncodeArgs, as_json: bool) -> Result<i32> {
    let append_eod = args.append_eod.as_ref().map(|name| match name {
        Some(name) => Eod::Named(name.clone()),
        None => Eod::Detect,
    });
    let encoded = data::encode(&Encode {
        inputs: &args.inputs,
        tokenizer: &args.tokenizer,
        output: &args.output,
        append_eod,
        json_key: &args.json_key,
    })?;
    if as_json {
        print_json("encoded", &encoded)?;
        return Ok(exit::OK);
    }
    let mut text = format!(
        "{}: {}, {} as {}",
        prefix_of(&args.output).display(),
        counted(encoded.documents as usize, "document"),
        counted(encoded.tokens as usize, "token"),
        encoded.dtype
    );
    if let Some(eod) = &encoded.eod_token {
        let _ = write!(text, ", each document ends with {eod}");
    }
    if encoded.skipped_documents > 0 {
        let _ = write!(
            text,
            "; {} without a token left out",
            counted(encoded.skipped_documents as usize, "document")
        );
    }
    print(&(text + "\n"))?;
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
