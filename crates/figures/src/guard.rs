//! The guard: which summaries may stand side by side, and in which words they differ.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use serde_json::Value;
use tprimat_job::Job;
use tprimat_logs::Trace;

use super::{
    CUSUM, CellInput, CellState, Claim, CompareSettings, Contract, ContractField, DATASET_DIGEST, DECLARED, Difference,
    Estimate, FieldDifference, Group, StepTime, Summary, TOKENIZER_DIGEST, Tier,
    contract::{classes, has_difference},
    differences,
    settings::{PRECISION, WARMUP, has_classes},
};

/// Under this strategy nothing at all may differ but platform and framework.
const STRICT_STRATEGY: &str = "identical_config";
/// Under this strategy each arm picks its precision: a legitimate question, never a silent one.
const OPEN_STRATEGY: &str = "maximum_performance";

/// A cell with figures.
pub(super) struct Arm<'a> {
    pub cell: &'a CellInput,
    pub summary: &'a Summary,
    /// The summary's, with what only tprimat knows.
    pub contract: Contract,
    pub estimate: &'a Estimate,
    pub step_time: &'a StepTime,
    pub group: usize,
    /// Among arms of one group: whose losses may be laid over each other.
    pub loss_group: usize,
}

/// A cell's contract: what its runs state and declare, and the content of the data that tprimat.lock pins.
pub(super) fn contract_of(cell: &CellInput, summary: &Summary) -> Contract {
    let mut contract = summary.contract.clone();
    for field in [DATASET_DIGEST, TOKENIZER_DIGEST] {
        if let Some(digest) = cell.environment.facts.get(field) {
            contract.declare(field, digest.clone().into());
        }
    }
    contract
}

impl Arm<'_> {
    fn is_strict(&self) -> bool {
        self.cell.parallelism == STRICT_STRATEGY
    }
    fn side(&self) -> (&CellInput, &Contract) {
        (self.cell, &self.contract)
    }
}

/// Indices into the arms.
pub(super) struct Grouped {
    pub baseline: usize,
    pub members: Vec<usize>,
}

impl Grouped {
    /// The baseline first.
    fn baseline_first(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.baseline).chain(self.members.iter().copied().filter(|i| *i != self.baseline))
    }

    pub fn describe(&self, arms: &[Arm<'_>], settings: &CompareSettings) -> Group {
        let base = &arms[self.baseline];
        let members: Vec<&Arm<'_>> = self.baseline_first().map(|i| &arms[i]).collect();
        Group {
            model: base.cell.model.clone(),
            workload: workload(&members, settings),
            identical_config: base.is_strict(),
            baseline: base.cell.cell.clone(),
            cells: self.members.iter().map(|&i| arms[i].cell.cell.clone()).collect(),
        }
    }
}

/// `sequence 2048, global batch 128, 8 devices` of a group whose first member is its baseline. Where members differ in a
/// field, as they do across it, all values: `global batch 64/128, 8 devices, across global_batch_size`.
fn workload(members: &[&Arm<'_>], settings: &CompareSettings) -> String {
    let [base, others @ ..] = members else { return String::new() };
    let values = |field: &str| -> Option<String> {
        let text =
            |arm: &Arm<'_>| arm.contract.get(field).map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
        let mut all = vec![text(base)?];
        for value in others.iter().filter_map(|arm| text(arm)) {
            if !all.contains(&value) {
                all.push(value);
            }
        }
        Some(all.join("/"))
    };
    let is_crossed = |field: &&String| {
        others.iter().any(|arm| {
            let differs = |d: &FieldDifference| d.is_known() && d.field == **field;
            differences(&arm.contract, &base.contract).iter().any(differs)
                || (*field == WARMUP && warmup_difference(arm.summary, base.summary).is_some())
        })
    };
    let crossed: Vec<&str> = settings.across.iter().filter(is_crossed).map(String::as_str).collect();
    let parts = [
        values("seq_length").map(|n| format!("sequence {n}")),
        values("global_batch_size").map(|n| format!("global batch {n}")),
        values("num_gpus").map(|n| format!("{n} {}", if n == "1" { "device" } else { "devices" })),
        values("data").map(|d| format!("{d} data")),
        (!crossed.is_empty()).then(|| format!("across {}", crossed.join(", "))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Does this difference forbid putting two cells of these strategies side by side?
pub(super) fn forbids(d: &FieldDifference, strategies: [&str; 2]) -> bool {
    let are_both = |strategy: &str| strategies.iter().all(|s| *s == strategy);
    let may_differ = d.field == PRECISION && are_both(OPEN_STRATEGY);
    d.is_known() && ((d.tier == Tier::Workload && !may_differ) || are_both(STRICT_STRATEGY))
}

/// What forbids putting two cells side by side.
fn blocking(
    (a, of_a): (&CellInput, &Contract),
    (b, of_b): (&CellInput, &Contract),
    settings: &CompareSettings,
) -> Vec<FieldDifference> {
    let forbids =
        |d: &FieldDifference| forbids(d, [&a.parallelism, &b.parallelism]) && !settings.across.contains(&d.field);
    differences(of_a, of_b).into_iter().filter(forbids).collect()
}

/// What forbids laying the losses of two comparable arms over each other.
pub(super) fn of_convergence(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> Vec<FieldDifference> {
    let forbids =
        |d: &FieldDifference| d.is_known() && d.tier == Tier::Convergence && !settings.across.contains(&d.field);
    differences(&a.contract, &b.contract).into_iter().filter(forbids).collect()
}

/// Do losses of two comparable arms belong on one axis?
fn is_one_loss(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> bool {
    let forbids = |d: &FieldDifference| d.tier == Tier::Convergence && !settings.across.contains(&d.field);
    a.group == b.group && !has_difference(&a.contract, &b.contract, forbids)
}

/// Numbers the arms of each group so that only those of one number trained towards the same loss.
pub(super) fn group_losses(arms: &mut [Arm<'_>], settings: &CompareSettings) {
    let matters = |field: &ContractField| field.tier == Tier::Convergence && !settings.across.contains(&field.field);
    let apart = stated_by_all(&classes(&arms.iter().map(|arm| &arm.contract).collect::<Vec<_>>(), matters));
    // Two values of such a field may differ in nothing but the loss.
    let may_matter = |field: &ContractField| matters(field) || has_classes(&field.field);
    let kind = |i: usize| (arms[i].group, stated(&arms[i].contract, may_matter));
    let apart = |i: usize| (arms[i].group, &apart[i]);
    let groups = cliques(arms.len(), kind, apart, |i, j| is_one_loss(&arms[i], &arms[j], settings));
    for (at, members) in groups.into_iter().enumerate() {
        members.into_iter().for_each(|i| arms[i].loss_group = at);
    }
}

/// Sorts the arms into groups, each with its baseline. To fit is not transitive, for a value that is not stated fits
/// any; so a member fits every other member, and any of them can be the baseline.
pub(super) fn group(arms: &mut [Arm<'_>], settings: &CompareSettings) -> Vec<Grouped> {
    // Under the strict strategy every field counts. Where cells were named, strict ones may stand among the others.
    let is_strict = |arm: &Arm<'_>| arm.is_strict() && !settings.named;
    let is_crossed = |field: &ContractField| settings.across.contains(&field.field);
    let mut apart = vec![Vec::new(); arms.len()];
    for strict in [false, true] {
        let of: Vec<usize> = (0..arms.len()).filter(|i| is_strict(&arms[*i]) == strict).collect();
        let contracts: Vec<&Contract> = of.iter().map(|i| &arms[*i].contract).collect();
        let decides =
            |f: &ContractField| !is_crossed(f) && (strict || (f.tier == Tier::Workload && !has_classes(&f.field)));
        for (i, classes) in of.into_iter().zip(stated_by_all(&classes(&contracts, decides))) {
            apart[i] = classes;
        }
    }
    // Nobody expects a comparison beyond these.
    let expected = |i: usize| (!settings.named).then(|| (&arms[i].cell.model, arms[i].is_strict()));
    let apart = |i: usize| (expected(i), &apart[i]);
    let may_count = |i: usize, f: &ContractField| {
        !is_crossed(f) && (f.tier == Tier::Workload || settings.named || arms[i].is_strict())
    };
    let kind = |i: usize| {
        let arm = &arms[i];
        (&arm.cell.model, &arm.cell.parallelism, stated(&arm.contract, |f| may_count(i, f)))
    };
    let fits = |i: usize, j: usize| {
        let (a, b) = (&arms[i], &arms[j]);
        let forbids = |d: &FieldDifference| {
            forbids(d, [&a.cell.parallelism, &b.cell.parallelism]) && !settings.across.contains(&d.field)
        };
        is_expected(a, b, settings) && !has_difference(&a.contract, &b.contract, forbids)
    };
    let mut groups = Vec::new();
    for members in cliques(arms.len(), kind, apart, fits) {
        let named = members.iter().find(|i| settings.baseline.as_deref() == Some(&arms[**i].cell.cell));
        groups.push(Grouped { baseline: *named.unwrap_or(&members[0]), members });
    }
    for (at, group) in groups.iter().enumerate() {
        group.members.iter().for_each(|i| arms[*i].group = at);
    }
    groups
}

/// The fields that matter, with their values.
fn stated(contract: &Contract, matters: impl Fn(&ContractField) -> bool) -> Vec<(&str, &Value)> {
    contract.0.iter().filter(|f| matters(f)).map(|f| (&*f.field, &f.value)).collect()
}

/// The numbers of those columns in which every row has one.
fn stated_by_all(rows: &[Vec<Option<usize>>]) -> Vec<Vec<usize>> {
    let columns: Vec<usize> =
        (0..rows.first().map_or(0, Vec::len)).filter(|c| rows.iter().all(|r| r[*c].is_some())).collect();
    rows.iter().map(|row| columns.iter().filter_map(|column| row[*column]).collect()).collect()
}

/// Sorts `count` things into groups in which every two fit: each into the first group that it fits all of.
///
/// Things of one `kind` fit the same others, so one of them is asked for all; things that are `apart` fit in no case, so
/// they are not asked. That is what keeps ten thousand cells from being asked in pairs.
fn cliques<K: Eq + Hash, A: Eq + Hash>(
    count: usize,
    kind: impl Fn(usize) -> K,
    apart: impl Fn(usize) -> A,
    fits: impl Fn(usize, usize) -> bool,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // One of each kind, by group.
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    let mut of_kind: HashMap<K, usize> = HashMap::new();
    let mut near: HashMap<A, Vec<usize>> = HashMap::new();
    for i in 0..count {
        let at = *of_kind.entry(kind(i)).or_insert_with(|| {
            let near = near.entry(apart(i)).or_default();
            let found = near.iter().copied().find(|group| kinds[*group].iter().all(|j| fits(i, *j)));
            let at = found.unwrap_or(groups.len());
            if found.is_none() {
                near.push(at);
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
fn is_expected(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> bool {
    settings.named || (a.cell.model == b.cell.model && a.is_strict() == b.is_strict())
}

pub(super) fn difference(a: &Arm<'_>, b: &Arm<'_>, field: FieldDifference, refused: bool) -> Difference {
    Difference { cell_a: a.cell.cell.clone(), cell_b: b.cell.cell.clone(), field, refused }
}

/// Why the groups of what was expected to be one are several.
pub(super) fn refused(arms: &[Arm<'_>], groups: &[Grouped], settings: &CompareSettings) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut firsts: BTreeMap<Option<(&str, bool)>, &Grouped> = BTreeMap::new();
    for group in groups {
        let base = &arms[group.baseline];
        // Those whose comparison somebody expects: see `is_expected`.
        let expected = (!settings.named).then(|| (&*base.cell.model, base.is_strict()));
        let Some(first) = firsts.get(&expected) else {
            firsts.insert(expected, group);
            continue;
        };
        // The two baselines may lack the value that other members differ in.
        let pairs = group.baseline_first().flat_map(|a| first.baseline_first().map(move |b| (&arms[a], &arms[b])));
        let found =
            pairs.map(|(a, b)| (a, b, blocking(a.side(), b.side(), settings))).find(|(.., fields)| !fields.is_empty());
        if let Some((a, b, fields)) = found {
            all.extend(fields.into_iter().map(|field| difference(a, b, field, true)));
        }
    }
    all
}

/// Two cells were named, and one has no figures that count: what forbids the comparison is told all the same.
pub(super) fn refused_without_figures(
    cells: &[CellInput],
    arms: &[Arm<'_>],
    settings: &CompareSettings,
) -> Vec<Difference> {
    let ([a, b], true) = (cells, settings.named && arms.len() < 2) else { return Vec::new() };
    let (CellState::Ok { summary: of_a }, CellState::Ok { summary: of_b }) = (&a.state, &b.state) else {
        return Vec::new();
    };
    let found = blocking((b, &contract_of(b, of_b)), (a, &contract_of(a, of_a)), settings);
    let told = |field| Difference { cell_a: b.cell.clone(), cell_b: a.cell.clone(), field, refused: true };
    found.into_iter().map(told).collect()
}

/// Why cells of the strategy `identical_config` will not be compared: in which settings their jobs differ from the first one of
/// their model and axes; a sentence for all cells that differ in the same way.
#[must_use]
pub fn not_identical<'a, K: Ord>(cells: impl Iterator<Item = (K, &'a str, &'a str, &'a Job)>) -> Vec<String> {
    let mut firsts: BTreeMap<K, (&str, Contract)> = BTreeMap::new();
    let mut found: Vec<(String, &str, Vec<String>)> = Vec::new();
    for (kind, cell, _, job) in cells.filter(|(_, _, strategy, _)| *strategy == STRICT_STRATEGY) {
        let contract = Contract::of(&Trace::default(), &Claim::of(job));
        let Some((first, of_first)) = firsts.get(&kind) else {
            firsts.insert(kind, (cell, contract));
            continue;
        };
        let known = differences(&contract, of_first).into_iter().filter(FieldDifference::is_known);
        let fields = known.map(|d| d.sentence()).collect::<Vec<_>>().join("; ");
        match found.iter_mut().find(|(others, ..)| *others == fields) {
            _ if fields.is_empty() => {}
            Some((.., cells)) => cells.push(format!("`{cell}`")),
            None => found.push((fields, first, vec![format!("`{cell}`")])),
        }
    }
    let sentence = |(fields, first, cells): (String, &str, Vec<String>)| {
        let cells = match &cells[..] {
            [one] => format!("{one} will not be compared with `{first}`"),
            many => format!("{} will not be compared with the first cell of their model (`{first}`)", crate::few(many)),
        };
        format!("under `{STRICT_STRATEGY}` nothing may differ, so {cells}: {fields}")
    };
    found.into_iter().map(sentence).collect()
}

/// What a reader must know beside any figure that puts `a` next to `b`.
pub(super) fn labels(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> Vec<String> {
    let known = differences(&a.contract, &b.contract).into_iter().filter(FieldDifference::is_known);
    let label = |d: FieldDifference| {
        if settings.across.contains(&d.field) { format!("across {}", d.sentence()) } else { d.sentence() }
    };
    let warmup = warmup_difference(a.summary, b.summary)
        .map(|words| if settings.crosses_warmup() { format!("across {words}") } else { words });
    // What somebody else measured is not what we did, whatever its figures are.
    let imported = (a.cell.imported.is_empty() != b.cell.imported.is_empty())
        .then(|| format!("{} is imported", if a.cell.imported.is_empty() { &b.cell.cell } else { &a.cell.cell }));
    earlier(a, b).into_iter().chain(imported).chain(warmup).chain(known.map(label)).collect()
}

/// That not both are measured as they are configured now.
fn earlier(a: &Arm<'_>, b: &Arm<'_>) -> Option<String> {
    let [of_a, of_b] = [a, b].map(|arm| arm.cell.standing.earlier.as_deref());
    match (of_a, of_b) {
        (None, None) => None,
        (Some(why), Some(same)) if why == same => Some(format!("both were {why}")),
        (Some(why), None) => Some(format!("{} was {why}", a.cell.cell)),
        (None, Some(why)) => Some(format!("{} was {why}", b.cell.cell)),
        (Some(why), Some(other)) => Some(format!("{} was {why}, {} was {other}", a.cell.cell, b.cell.cell)),
    }
}

/// `warm-up 9, not 5 steps`: the two do not drop the same steps, or not by the same rule.
fn warmup_difference(a: &Summary, b: &Summary) -> Option<String> {
    other_warmup(a.warm_up(), b.warm_up())
}

/// The same of declared steps and the name of the rule.
pub(super) fn other_warmup(a: (u64, &str), b: (u64, &str)) -> Option<String> {
    let mut parts = Vec::new();
    if a.0 != b.0 {
        parts.push(format!("warm-up {}, not {} steps", a.0, b.0));
    }
    if a.1 != b.1 {
        let rule = |name: &str| match name {
            CUSUM => "detected by CUSUM",
            DECLARED => "not assessed",
            _ => "assessed in part of the repeats",
        };
        parts.push(format!("steady state {}, there {}", rule(a.1), rule(b.1)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// May a difference between the two be tested? Not where one of them still measures steps that the other declares to be
/// warm-up, and nobody has looked whether they are. docs/METRICS.md, "Steady state".
/// Declared steps and the name of the rule, of each.
pub(super) fn measure_alike(a: (u64, &str), b: (u64, &str)) -> bool {
    a.0 == b.0 || [a, b].iter().all(|s| s.1 == CUSUM)
}

#[cfg(test)]
mod tests;
