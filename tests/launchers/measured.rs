//! Logs of real frameworks on two H200s, kept in docs/measured/frameworks-h200: all steps are read, and nothing contradicts
//! the job that each was launched for.

use std::{fs, path::Path};

use tprimat::{
    analyze::{Claim, attest},
    parse,
    plan::{Plan, PlanRequest},
};

use crate::render::{ROOT, supported_of};

#[test]
fn logs_of_real_frameworks_are_attested() {
    let root = Path::new(ROOT).join("tests/frameworks");
    let request = PlanRequest { root, matrix: Some("h200".into()), ..PlanRequest::default() };
    let plan = Plan::load(&request).unwrap_or_else(|e| panic!("{e}"));
    let logs = Path::new(ROOT).join("docs/measured/frameworks-h200/logs");
    let (mut read, kept) = (0, fs::read_dir(&logs).unwrap().count());
    for (id, recipe, job) in supported_of(&plan) {
        let Ok(log) = fs::read(logs.join(format!("{}.log", id.replace('/', "-")))) else { continue };
        read += 1;
        let trace = parse::parse(&recipe.file.log, &log);
        assert_eq!(trace.steps.len() as u64, job.train_iters, "{id}");
        let attestation = attest(&trace, &Claim::of(job), true);
        let contradicted: Vec<_> = attestation.contradicted().collect();
        assert!(contradicted.is_empty(), "{id}: {contradicted:#?}");
    }
    assert!(read == kept && read > 0, "{read} of {kept} logs belong to a cell");
}
