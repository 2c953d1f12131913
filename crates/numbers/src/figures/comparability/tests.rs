use std::cell::Cell;

use crate::results::{ContractField, Source};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::figures::{
    compare::candidate,
    stand_ins::{measured, test_job as job},
};

/// What one candidate states: absent fields fit any value.
#[derive(Clone, Debug)]
struct Stated {
    strategy: usize,
    model: usize,
    fields: [Option<usize>; 5],
}

const STRATEGIES: [&str; 3] = [STRICT_STRATEGY, OPEN_STRATEGY, "mine"];
const FIELDS: [(&str, Tier); 5] = [
    ("global_batch_size", Tier::Workload),
    ("dropout", Tier::Workload),
    (PRECISION, Tier::Workload),
    ("micro_batch_size", Tier::Execution),
    ("learning_rate", Tier::Convergence),
];

fn value(field: usize, pick: usize) -> Value {
    match FIELDS[field].0 {
        PRECISION => ["bf16", "fp16", "fp8"].map(Value::from)[pick].clone(),
        // Each agrees with its neighbour, the first does not with the last.
        "dropout" | "learning_rate" => json!(0.1 * (1.0 + 0.8e-6 * pick as f64)),
        _ => json!(pick + 1),
    }
}

fn cell_of(at: usize, of: &Stated) -> CellInput {
    let name = format!("cpu/f{at}/model{}/{}", of.model, STRATEGIES[of.strategy]);
    let mut cell = measured(&name, &job(), &[1.0, 1.01], None);
    let CellState::Ok { summary } = &mut cell.state else {
        unreachable!()
    };
    summary.contract.0 = (0..FIELDS.len())
        .filter_map(|f| {
            let (field, tier) = (FIELDS[f].0.to_owned(), FIELDS[f].1);
            Some(ContractField {
                field,
                tier,
                value: value(f, of.fields[f]?),
                source: Source::Effective,
            })
        })
        .collect();
    cell
}

/// The definition: each thing into the first group all of whose members it fits.
fn one_by_one(count: usize, fits: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut of = Vec::new();
    for i in 0..count {
        let at = groups
            .iter()
            .position(|group| group.iter().all(|j| fits(i, *j)))
            .unwrap_or(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        groups[at].push(i);
        of.push(at);
    }
    of
}

proptest! {
    #[test]
    fn groups_are_those_of_asking_every_pair(
        stated in proptest::collection::vec((0usize..3, 0usize..2, proptest::array::uniform5(proptest::option::of(0usize..3))), 1..24),
        across in proptest::sample::subsequence(FIELDS.map(|(field, _)| field).to_vec(), 0..2),
        named in any::<bool>(),
    ) {
        let stated = stated.into_iter().map(|(strategy, model, fields)| Stated { strategy, model, fields });
        let cells: Vec<CellInput> = stated.enumerate().map(|(at, of)| cell_of(at, &of)).collect();
        let settings = CompareSettings { across: across.into_iter().map(str::to_owned).collect(), named, baseline: None };
        let mut candidates: Vec<Candidate<'_>> = cells.iter().map(|cell| candidate(cell).unwrap()).collect();
        let expected = one_by_one(candidates.len(), |i, j| {
            let (a, b) = (&candidates[i], &candidates[j]);
            is_expected(a, b, &settings) && blocking(a.side(), b.side(), &settings).is_empty()
        });
        let groups = group(&mut candidates, &settings);
        prop_assert_eq!(&candidates.iter().map(|candidate| candidate.group).collect::<Vec<_>>(), &expected);
        prop_assert!(groups.iter().enumerate().all(|(at, g)| g.members.iter().all(|i| expected[*i] == at)));
        let expected = one_by_one(candidates.len(), |i, j| {
            candidates[i].group == candidates[j].group && of_convergence(&candidates[i], &candidates[j], &settings).is_empty()
        });
        group_losses(&mut candidates, &settings);
        prop_assert_eq!(candidates.iter().map(|candidate| candidate.loss_group).collect::<Vec<_>>(), expected);
    }
}

/// Cells that all agree are not asked in pairs.
#[test]
fn a_sweep_is_not_asked_in_pairs() {
    let asked = Cell::new(0);
    let fits = |_: usize, _: usize| {
        asked.set(asked.get() + 1);
        true
    };
    assert_eq!(cliques(10_000, |_| 0, fits).len(), 1);
    assert_eq!(asked.get(), 0, "things of one kind");
}
