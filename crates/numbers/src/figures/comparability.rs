//! Which summaries may stand side by side, and how they differ: the comparability guard.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use crate::results::{
    CUSUM, Claim, Contract, ContractField, DATASET_DIGEST, FieldDifference, Reason, Source,
    TOKENIZER_DIGEST, Tier,
    contract::has_difference,
    differences,
    settings::{NUM_PARAMETERS, PRECISION, WARMUP, has_classes},
    unlisted::is_of_precision,
    words::few,
};
use serde_json::Value;
use tprimat_job::Job;
use tprimat_logs::Trace;

use super::{
    CellInput, CellState, CompareSettings, DECLARED, Difference, Estimate, Group, StepTime,
    Summary, WHOLE, codes::WARM_UP,
};

/// Under this strategy nothing at all may differ but platform and framework.
const STRICT_STRATEGY: &str = "identical_config";
/// Under this strategy each candidate picks its precision: a legitimate question, never a silent one.
const OPEN_STRATEGY: &str = "maximum_performance";

/// A cell with figures.
pub(super) struct Candidate<'a> {
    pub cell: &'a CellInput,
    pub summary: &'a Summary,
    /// The summary's, with what only tprimat knows.
    pub contract: Contract,
    pub estimate: &'a Estimate,
    pub step_time: &'a StepTime,
    pub group: usize,
    /// Losses may be laid over each other where candidates of one group have the same number here.
    pub loss_group: usize,
}

/// A cell's contract: what its runs state and declare, and the content of the data that
/// tprimat.lock pins.
pub(super) fn contract_of(cell: &CellInput, summary: &Summary) -> Contract {
    let mut contract = summary.contract.clone();
    for field in [DATASET_DIGEST, TOKENIZER_DIGEST] {
        if let Some(digest) = cell.environment.facts.get(field) {
            contract.declare(field, digest.clone().into());
        }
    }
    contract
}

impl Candidate<'_> {
    fn is_strict(&self) -> bool {
        self.cell.parallelism == STRICT_STRATEGY
    }
    fn side(&self) -> (&CellInput, &Contract) {
        (self.cell, &self.contract)
    }
}

/// Indices into the candidates.
pub(super) struct Grouped {
    pub baseline: usize,
    pub members: Vec<usize>,
}

impl Grouped {
    /// The baseline first.
    fn baseline_first(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.baseline)
            .chain(self.members.iter().copied().filter(|i| *i != self.baseline))
    }

    pub fn describe(&self, candidates: &[Candidate<'_>], settings: &CompareSettings) -> Group {
        let base = &candidates[self.baseline];
        let members: Vec<&Candidate<'_>> = self.baseline_first().map(|i| &candidates[i]).collect();
        let across = crossed(&members, settings);
        Group {
            model: base.cell.model.clone(),
            workload: workload(&members, &across),
            across,
            identical_config: base.is_strict(),
            baseline: base.cell.cell.clone(),
            cells: self
                .members
                .iter()
                .map(|&i| candidates[i].cell.cell.clone())
                .collect(),
        }
    }
}

/// Fields in which members of a group differ from its first one, among those that were asked to be
/// compared across.
fn crossed(members: &[&Candidate<'_>], settings: &CompareSettings) -> Vec<String> {
    let is_crossed = |field: &&String| {
        let base = members[0];
        members[1..].iter().any(|candidate| {
            let differs = |d: &FieldDifference| d.is_known() && d.field == **field;
            differences(&candidate.contract, &base.contract)
                .iter()
                .any(differs)
                || (*field == WARMUP
                    && other_warmup(candidate.summary.warm_up(), base.summary.warm_up()).is_some())
        })
    };
    settings.across.iter().filter(is_crossed).cloned().collect()
}

/// What the members of a group ran, whose first one is its baseline: where members differ in a
/// field, as they do across it, all values.
fn workload(members: &[&Candidate<'_>], across: &[String]) -> String {
    let values = |field: &str| -> Option<String> {
        let text = |candidate: &Candidate<'_>| {
            candidate
                .contract
                .get(field)
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
        };
        let mut all = vec![text(members[0])?];
        for value in members.iter().filter_map(|candidate| text(candidate)) {
            if !all.contains(&value) {
                all.push(value);
            }
        }
        Some(all.join("/"))
    };
    let devices = |n: String| {
        let devices = if n == "1" { "device" } else { "devices" };
        format!("{n} {devices}")
    };
    let mut sources = members.iter().map(|member| member.contract.source("data"));
    let says_data = sources.any(|source| source.is_some_and(Source::is_of_trainer));
    let parts = [
        values("precision"),
        values("seq_length").map(|n| format!("sequence {n}")),
        values("global_batch_size").map(|n| format!("global batch {n}")),
        values("num_gpus").map(devices),
        // That nobody named a dataset says nothing of what a script reads.
        values("data")
            .filter(|data| data != "random" || says_data)
            .map(|data| format!("{data} data")),
        (!across.is_empty()).then(|| format!("across {}", across.join(", "))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Does this difference forbid putting two cells of these strategies side by side?
pub(super) fn forbids(d: &FieldDifference, strategies: [&str; 2]) -> bool {
    let are_both = |strategy: &str| strategies.iter().all(|s| *s == strategy);
    let is_precision = d.field == PRECISION || is_of_precision(&d.field);
    let may_differ = is_precision && are_both(OPEN_STRATEGY);
    d.is_known() && ((d.tier == Tier::Workload && !may_differ) || are_both(STRICT_STRATEGY))
}

/// What forbids putting two cells side by side.
fn blocking(
    (a, of_a): (&CellInput, &Contract),
    (b, of_b): (&CellInput, &Contract),
    settings: &CompareSettings,
) -> Vec<FieldDifference> {
    let forbids = |d: &FieldDifference| {
        forbids(d, [&a.parallelism, &b.parallelism]) && !settings.across.contains(&d.field)
    };
    differences(of_a, of_b)
        .into_iter()
        .filter(forbids)
        .chain(other_model((a, of_a), (b, of_b)))
        .collect()
}

/// Models of two names of which one has neither a known shape nor a known size: nothing says that they
/// are one model.
fn other_model(
    (a, of_a): (&CellInput, &Contract),
    (b, of_b): (&CellInput, &Contract),
) -> Option<FieldDifference> {
    let is_known = |of: &Contract| {
        ["num_layers", NUM_PARAMETERS]
            .iter()
            .any(|field| of.get(field).is_some())
    };
    let is_open = a.model != b.model && !(is_known(of_a) && is_known(of_b));
    is_open.then(|| FieldDifference {
        field: "model".to_owned(),
        tier: Tier::Workload,
        a: Some(a.model.clone().into()),
        b: Some(b.model.clone().into()),
    })
}

/// What forbids laying the losses of two comparable candidates over each other.
pub(super) fn of_convergence(
    a: &Candidate<'_>,
    b: &Candidate<'_>,
    settings: &CompareSettings,
) -> Vec<FieldDifference> {
    let forbids = |d: &FieldDifference| {
        d.is_known() && d.tier == Tier::Convergence && !settings.across.contains(&d.field)
    };
    differences(&a.contract, &b.contract)
        .into_iter()
        .filter(forbids)
        .collect()
}

/// Do losses of two comparable candidates belong on one axis?
fn is_one_loss(a: &Candidate<'_>, b: &Candidate<'_>, settings: &CompareSettings) -> bool {
    let forbids =
        |d: &FieldDifference| d.tier == Tier::Convergence && !settings.across.contains(&d.field);
    // Nobody knows what an imported run was trained on, unless its log says so.
    let is_open =
        |of: &Candidate<'_>| !of.cell.imported.is_empty() && of.contract.get("data").is_none();
    let may_be_other =
        !settings.across.iter().any(|field| field == "data") && (is_open(a) || is_open(b));
    a.group == b.group && !may_be_other && !has_difference(&a.contract, &b.contract, forbids)
}

/// The settings that losses depend on, and in which cells differ that are told apart by the axes of
/// their matrix alone: a sweep over the learning rate asks for its losses. `cells`: those of matrices,
/// by name; what tells imports of one name apart is nobody's axis.
pub fn varied_for_losses<'a>(cells: impl Iterator<Item = (&'a str, &'a Contract)>) -> Vec<String> {
    let mut first: BTreeMap<&str, &Contract> = BTreeMap::new();
    let mut varied = BTreeSet::new();
    for (cell, contract) in cells {
        let name = cell.split('@').next().unwrap_or(cell);
        let found = differences(first.entry(name).or_insert(contract), contract).into_iter();
        let found = found.filter(|d| d.is_known() && d.tier == Tier::Convergence);
        varied.extend(found.map(|d| d.field));
    }
    varied.into_iter().collect()
}

/// Numbers the candidates of each group so that only those of one number trained towards the same loss.
pub(super) fn group_losses(candidates: &mut [Candidate<'_>], settings: &CompareSettings) {
    let matters = |field: &ContractField| {
        field.tier == Tier::Convergence && !settings.across.contains(&field.field)
    };
    // Two values of such a field may differ in nothing but the loss.
    let may_matter = |field: &ContractField| matters(field) || has_classes(&field.field);
    let kind = |i: usize| {
        (
            candidates[i].group,
            stated(&candidates[i].contract, may_matter),
        )
    };
    let groups = cliques(candidates.len(), kind, |i, j| {
        is_one_loss(&candidates[i], &candidates[j], settings)
    });
    for (at, members) in groups.into_iter().enumerate() {
        members
            .into_iter()
            .for_each(|i| candidates[i].loss_group = at);
    }
}

/// Sorts the candidates into groups of comparable ones, each with its baseline. A value that is not
/// stated matches every other, so A may match B and B match C while A does not match C. Every member of
/// a group therefore matches every other, and any of them can be the baseline.
pub(super) fn group(candidates: &mut [Candidate<'_>], settings: &CompareSettings) -> Vec<Grouped> {
    let is_crossed = |field: &ContractField| settings.across.contains(&field.field);
    let may_count = |i: usize, f: &ContractField| {
        !is_crossed(f) && (f.tier == Tier::Workload || settings.named || candidates[i].is_strict())
    };
    let kind = |i: usize| {
        let candidate = &candidates[i];
        (
            &candidate.cell.model,
            &candidate.cell.parallelism,
            stated(&candidate.contract, |f| may_count(i, f)),
        )
    };
    let fits = |i: usize, j: usize| {
        let (a, b) = (&candidates[i], &candidates[j]);
        let forbids = |d: &FieldDifference| {
            forbids(d, [&a.cell.parallelism, &b.cell.parallelism])
                && !settings.across.contains(&d.field)
        };
        is_expected(a, b, settings)
            && other_model(a.side(), b.side()).is_none()
            && !has_difference(&a.contract, &b.contract, forbids)
    };
    let mut groups = Vec::new();
    for members in cliques(candidates.len(), kind, fits) {
        let named = members
            .iter()
            .find(|i| settings.baseline.as_deref() == Some(&candidates[**i].cell.cell));
        groups.push(Grouped {
            baseline: *named.unwrap_or(&members[0]),
            members,
        });
    }
    for (at, group) in groups.iter().enumerate() {
        group.members.iter().for_each(|i| candidates[*i].group = at);
    }
    groups
}

/// The fields that matter, with their values.
fn stated(contract: &Contract, matters: impl Fn(&ContractField) -> bool) -> Vec<(&str, &Value)> {
    contract
        .0
        .iter()
        .filter(|f| matters(f))
        .map(|f| (&*f.field, &f.value))
        .collect()
}

/// Sorts `count` things into groups in which every two fit: each into the first group that it fits
/// all of.
///
/// Things of one `kind` fit the same others, so one of them is asked for all.
fn cliques<K: Eq + Hash>(
    count: usize,
    kind: impl Fn(usize) -> K,
    fits: impl Fn(usize, usize) -> bool,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // One of each kind, by group.
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    let mut of_kind: HashMap<K, usize> = HashMap::new();
    for i in 0..count {
        let at = *of_kind.entry(kind(i)).or_insert_with(|| {
            let fits_all = |kinds: &Vec<usize>| kinds.iter().all(|j| fits(i, *j));
            let at = kinds.iter().position(fits_all).unwrap_or(kinds.len());
            if at == kinds.len() {
                groups.push(Vec::new());
                kinds.push(Vec::new());
            }
            kinds[at].push(i);
            at
        });
        groups[at].push(i);
    }
    groups
}

/// Does anybody expect these two to be compared?
fn is_expected(a: &Candidate<'_>, b: &Candidate<'_>, settings: &CompareSettings) -> bool {
    settings.named || (a.cell.model == b.cell.model && a.is_strict() == b.is_strict())
}

pub(super) fn difference(
    a: &Candidate<'_>,
    b: &Candidate<'_>,
    field: FieldDifference,
    refused: bool,
) -> Difference {
    Difference {
        cell_a: a.cell.cell.clone(),
        cell_b: b.cell.cell.clone(),
        field,
        refused,
    }
}

/// Why the groups of what was expected to be one are several.
pub(super) fn refused(
    candidates: &[Candidate<'_>],
    groups: &[Grouped],
    settings: &CompareSettings,
) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut firsts: BTreeMap<Option<(&str, bool)>, &Grouped> = BTreeMap::new();
    for group in groups {
        let base = &candidates[group.baseline];
        // Those whose comparison somebody expects: see `is_expected`.
        let expected = (!settings.named).then(|| (&*base.cell.model, base.is_strict()));
        let Some(first) = firsts.get(&expected) else {
            firsts.insert(expected, group);
            continue;
        };
        // The two baselines may lack the value that other members differ in.
        let pairs = group.baseline_first().flat_map(|a| {
            first
                .baseline_first()
                .map(move |b| (&candidates[a], &candidates[b]))
        });
        let found = pairs
            .map(|(a, b)| (a, b, blocking(a.side(), b.side(), settings)))
            .find(|(.., fields)| !fields.is_empty());
        if let Some((a, b, fields)) = found {
            all.extend(
                fields
                    .into_iter()
                    .map(|field| difference(a, b, field, true)),
            );
        }
    }
    all
}

/// Two cells were named, and one has no figures that count: what forbids the comparison is told all
/// the same.
pub(super) fn refused_without_figures(
    cells: &[CellInput],
    candidates: &[Candidate<'_>],
    settings: &CompareSettings,
) -> Vec<Difference> {
    let ([a, b], true) = (cells, settings.named && candidates.len() < 2) else {
        return Vec::new();
    };
    let (CellState::Ok { summary: of_a }, CellState::Ok { summary: of_b }) = (&a.state, &b.state)
    else {
        return Vec::new();
    };
    let found = blocking(
        (b, &contract_of(b, of_b)),
        (a, &contract_of(a, of_a)),
        settings,
    );
    let told = |field| Difference {
        cell_a: b.cell.clone(),
        cell_b: a.cell.clone(),
        field,
        refused: true,
    };
    found.into_iter().map(told).collect()
}

/// Why cells of the strategy `identical_config` will not be compared: their jobs differ from that of
/// the first one of their model and axes. All cells that differ in the same way are in one sentence.
#[must_use]
pub fn not_identical<'a, K: Ord>(
    cells: impl Iterator<Item = (K, &'a str, &'a str, &'a Job)>,
) -> Vec<String> {
    let mut firsts: BTreeMap<K, (&str, Contract)> = BTreeMap::new();
    // The first cell, those that differ from it, and how.
    let mut found: Vec<(&str, Vec<String>, String)> = Vec::new();
    for (kind, cell, _, job) in cells.filter(|(_, _, strategy, _)| *strategy == STRICT_STRATEGY) {
        let contract = Contract::of(&Trace::default(), &Claim::of(job));
        let Some((first, of_first)) = firsts.get(&kind) else {
            firsts.insert(kind, (cell, contract));
            continue;
        };
        let fields: Vec<String> = differences(&contract, of_first)
            .iter()
            .filter(|field| field.is_known())
            .map(FieldDifference::words)
            .collect();
        let fields = fields.join("; ");
        match found.iter_mut().find(|(.., others)| *others == fields) {
            _ if fields.is_empty() => {}
            Some((_, cells, _)) => cells.push(format!("`{cell}`")),
            None => found.push((first, vec![format!("`{cell}`")], fields)),
        }
    }
    let told = |(first, cells, fields): (&str, Vec<String>, String)| {
        let cells = match &cells[..] {
            [one] => format!("{one} will not be compared with `{first}`"),
            many => format!(
                "{} will not be compared with the first cell of their model (`{first}`)",
                few(many)
            ),
        };
        format!("under `{STRICT_STRATEGY}` nothing may differ, so {cells}: {fields}")
    };
    found.into_iter().map(told).collect()
}

/// How `a` differs from `b`: what a reader must know beside any figure that puts one next to the
/// other.
pub(super) fn labels(
    a: &Candidate<'_>,
    b: &Candidate<'_>,
    settings: &CompareSettings,
) -> Vec<Reason> {
    let label = |code: &'static str, is_crossed: bool, text: String| {
        if is_crossed {
            Reason::beside(code, format!("across {text}")).with("crossed", true)
        } else {
            Reason::beside(code, text)
        }
    };
    let of_field = |field: FieldDifference| {
        let is_crossed = settings.across.contains(&field.field);
        label("field", is_crossed, field.words()).with("field", field.field)
    };
    let fields = differences(&a.contract, &b.contract)
        .into_iter()
        .filter(FieldDifference::is_known)
        .map(of_field);
    let warmup = other_warmup(a.summary.warm_up(), b.summary.warm_up())
        .map(|text| label(WARM_UP, settings.crosses_warmup(), text));
    // What somebody else measured is not what we did, whatever its figures are.
    let imported = if a.cell.imported.is_empty() { b } else { a };
    let imported = (a.cell.imported.is_empty() != b.cell.imported.is_empty()).then(|| {
        label(
            "imported",
            false,
            format!("{} is imported", imported.cell.cell),
        )
    });
    earlier(a, b)
        .map(|text| label("earlier", false, text))
        .into_iter()
        .chain(imported)
        .chain(warmup)
        .chain(fields)
        .collect()
}

/// Is it a field that the user asked to compare across?
#[must_use]
pub fn is_crossed(label: &Reason) -> bool {
    label.values.contains_key("crossed")
}

/// That not both are measured as they are configured now.
fn earlier(a: &Candidate<'_>, b: &Candidate<'_>) -> Option<String> {
    let [of_a, of_b] = [a, b].map(|candidate| candidate.cell.standing.earlier.as_ref());
    if let Some(why) = of_a.filter(|_| of_a == of_b) {
        return Some(format!("both were {why}"));
    }
    let each: Vec<String> = [(a, of_a), (b, of_b)]
        .into_iter()
        .filter_map(|(candidate, why)| Some(format!("{} was {}", candidate.cell.cell, why?)))
        .collect();
    (!each.is_empty()).then(|| each.join(", "))
}

/// `warm-up 9, not 5 steps`: how declared steps and the name of the rule differ, where two do not
/// drop the same steps, or not by the same rule.
pub(super) fn other_warmup(a: (u64, &str), b: (u64, &str)) -> Option<String> {
    let rule = |name: &str| match name {
        CUSUM => "detected by CUSUM",
        DECLARED => "not assessed",
        WHOLE => "not looked for, as the rate is that of the whole run",
        _ => "assessed in part of the repeats",
    };
    let are_whole = [a, b].iter().all(|of| of.1 == WHOLE);
    let steps = (a.0 != b.0 && !are_whole).then(|| format!("warm-up {}, not {} steps", a.0, b.0));
    let rules = (a.1 != b.1).then(|| format!("steady state {}, there {}", rule(a.1), rule(b.1)));
    let parts: Vec<String> = steps.into_iter().chain(rules).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// May a difference between the two be tested? Not where one of them still measures steps that the
/// other declares to be warm-up, and nobody has looked whether they are, as in the rate of a whole run. docs/METRICS.md, "Steady
/// state". Each is given as its declared warm-up steps and the name of its rule.
pub(super) fn measure_alike(a: (u64, &str), b: (u64, &str)) -> bool {
    let [of_a, of_b] = [a, b].map(|s| s.1 == WHOLE);
    of_a && of_b || of_a == of_b && (a.0 == b.0 || [a, b].iter().all(|s| s.1 == CUSUM))
}

#[cfg(test)]
mod tests;
