//! The workload of a run: the settings that must agree before two summaries may stand side by side.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use tprimat_logs::Trace;

use super::{
    Claim, parameters,
    settings::{self, NUM_PARAMETERS, SETTINGS, SLIDING_WINDOW, Tier, agree, class, is_further},
    unlisted::{is_of_models, is_usual},
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Contract(pub Vec<ContractField>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ContractField {
    pub field: String,
    pub tier: Tier,
    pub value: Value,
    pub source: Source,
}

/// Who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The trainer.
    Effective,
    /// Nobody, but the trainer's own figures leave no other value.
    Derived,
    /// Only the job, or the label of an imported file.
    Declared,
    /// Nobody: tprimat's own default, which nobody wrote and no command was given.
    Default,
}

impl Source {
    /// Is there anything but tprimat's word for it?
    #[must_use]
    pub fn is_of_trainer(self) -> bool {
        matches!(self, Self::Effective | Self::Derived)
    }
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldDifference {
    pub field: String,
    pub tier: Tier,
    /// Absent = not stated.
    pub a: Option<Value>,
    pub b: Option<Value>,
}

impl FieldDifference {
    /// Both sides are known: a real difference, not a gap in what one trainer says.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.a.is_some() && self.b.is_some()
    }

    /// `precision: fp8, not bf16`
    #[must_use]
    pub fn words(&self) -> String {
        let [a, b] = [&self.a, &self.b].map(|value| settings::show(value.as_ref()));
        format!("{}: {a}, not {b}", self.field)
    }
}

impl Contract {
    /// Effective values where the trainer states them, else the declared ones.
    #[must_use]
    pub fn of(trace: &Trace, claim: &Claim) -> Self {
        let mut declared = claim.declared();
        let stated = settings::setting("seq_length").map(|s| s.effective(&trace.effective.0));
        let length = stated.flatten().or(declared.get("seq_length").cloned());
        let length = length.and_then(|length| length.as_u64());
        let field = |setting: &'static settings::Setting| {
            let declared = declared.remove(setting.name.as_str());
            let effective = setting.effective(&trace.effective.0);
            // Trainers have many words for none of it, and a window over the whole sequence is none.
            let reaches = |value: &Value| {
                let window = value.as_u64().filter(|_| setting.name == SLIDING_WINDOW);
                window
                    .zip(length)
                    .is_some_and(|(window, length)| window >= length)
            };
            let plain = |value: Value| {
                let is_none = is_further(&setting.name) && is_usual(&setting.name, &value);
                if is_none && declared.is_none() || reaches(&value) {
                    0.into()
                } else {
                    value
                }
            };
            let (effective, declared) = (effective.map(plain), declared.clone().map(plain));
            let (value, source) = match (declared, effective) {
                // One spelling for what agrees: a rounded float is no difference.
                (Some(declared), Some(effective)) if agree(&declared, &effective) => {
                    (declared, Source::Effective)
                }
                (_, Some(effective)) => (effective, Source::Effective),
                (Some(default), None) if claim.unwritten.contains(&setting.name) => {
                    (default, Source::Default)
                }
                (Some(declared), None) => (declared, Source::Declared),
                (None, None) => return None,
            };
            Some(ContractField {
                field: setting.name.clone(),
                tier: setting.tier,
                value,
                source,
            })
        };
        // What else the trainer states and two cells are kept apart by.
        let others = settings::unlisted(&trace.effective.0).into_iter();
        let mut contract = Self(SETTINGS.iter().filter_map(field).collect());
        // Where the shape is known, a model's name adds nothing: trainers spell one model in many ways.
        let has_shape = contract.get("num_layers").is_some();
        let is_model = |field: &str| {
            is_of_models(field)
                && field.contains("model")
                && settings::tier_of(field) == Some(Tier::Workload)
        };
        let others =
            others.filter(|(field, _)| field != NUM_PARAMETERS && !(has_shape && is_model(field)));
        let others = others.filter_map(|(field, value)| {
            let tier = settings::tier_of(&field)?;
            // Hosts have one model in several folders.
            let path = value.as_str().map(|text| text.trim_end_matches('/'));
            let value = match path.and_then(|path| path.rsplit_once('/')) {
                Some((_, name)) if is_of_models(&field) => name.into(),
                _ => value,
            };
            let source = Source::Effective;
            Some(ContractField {
                field,
                tier,
                value,
                source,
            })
        });
        contract.0.extend(others);
        contract.size_of(trace, claim);
        contract
    }

    /// How large the model is, where its shape is not known.
    fn size_of(&mut self, trace: &Trace, claim: &Claim) {
        let stated = parameters::stated(trace).next();
        let declared = Some(claim.job.model.num_parameters)
            .filter(|count| *count > 0 && claim.covers(NUM_PARAMETERS));
        let source = if stated.is_some() {
            Source::Effective
        } else {
            Source::Declared
        };
        let count = stated.map(|(_, count)| count).or(declared);
        let Some(count) = count.filter(|_| self.get("num_layers").is_none()) else {
            return;
        };
        self.0.push(ContractField {
            field: NUM_PARAMETERS.to_owned(),
            tier: Tier::Workload,
            value: count.into(),
            source,
        });
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.iter().find(|f| f.field == field).map(|f| &f.value)
    }

    /// A value that arithmetic shows, where the trainer does not state one.
    pub fn derive(&mut self, field: &str, value: Value) {
        self.add(field, value, Source::Derived);
    }

    /// A value that tprimat itself knows, where the trainer does not state one.
    pub fn declare(&mut self, field: &str, value: Value) {
        self.add(field, value, Source::Declared);
    }

    fn add(&mut self, field: &str, value: Value, source: Source) {
        let Some(at) = SETTINGS.iter().position(|s| s.name == field) else {
            return;
        };
        let found = ContractField {
            field: field.to_owned(),
            tier: SETTINGS[at].tier,
            value,
            source,
        };
        match self.0.iter_mut().find(|f| f.field == field) {
            Some(known) if !known.source.is_of_trainer() => *known = found,
            Some(_) => {}
            None => {
                let rank = |name: &str| SETTINGS.iter().position(|s| s.name == name);
                let place = self
                    .0
                    .iter()
                    .position(|f| rank(&f.field) > Some(at))
                    .unwrap_or(self.0.len());
                self.0.insert(place, found);
            }
        }
    }

    #[must_use]
    pub fn source(&self, field: &str) -> Option<Source> {
        self.0.iter().find(|f| f.field == field).map(|f| f.source)
    }

    #[must_use]
    pub fn count(&self, field: &str) -> Option<u64> {
        self.get(field)?.as_u64()
    }

    /// Fields of the workload that only the job states.
    pub fn declared_only(&self) -> impl Iterator<Item = &str> {
        let declared =
            |f: &&ContractField| f.tier == Tier::Workload && f.source == Source::Declared;
        self.0.iter().filter(declared).map(|f| f.field.as_str())
    }
}

/// All fields in which two contracts differ, in the order of the settings table.
#[must_use]
pub fn differences(a: &Contract, b: &Contract) -> Vec<FieldDifference> {
    let of_a = beside(a, b).map(|(field, other)| (Some(field), other));
    let only_b = beside(b, a)
        .filter(|(_, other)| other.is_none())
        .map(|(field, _)| (None, Some(field)));
    let mut found: Vec<FieldDifference> = of_a
        .chain(only_b)
        .filter_map(|(a, b)| difference(a, b))
        .collect();
    found.extend(other_size(a, b));
    let rank = |field: &str| {
        SETTINGS
            .iter()
            .position(|s| s.name == field)
            .unwrap_or(usize::MAX)
    };
    found.sort_by_cached_key(|d| (rank(&d.field), d.field.clone()));
    found
}

/// Is any field that both state one in which they differ, and is it forbidden? Stops at the first.
pub fn has_difference(
    a: &Contract,
    b: &Contract,
    forbids: impl Fn(&FieldDifference) -> bool,
) -> bool {
    beside(a, b).any(|(field, other)| {
        other.is_some() && difference(Some(field), other).is_some_and(|d| forbids(&d))
    }) || other_size(a, b).is_some_and(|d| forbids(&d))
}

/// The count of parameters of one side, beside a shape of the other that has another number of them.
fn other_size(a: &Contract, b: &Contract) -> Option<FieldDifference> {
    let [of_a, of_b] = [a, b].map(|contract| contract.count(NUM_PARAMETERS));
    let (stated, shape) = match (of_a, of_b) {
        (Some(count), None) => (count, b),
        (None, Some(count)) => (count, a),
        _ => return None,
    };
    let sizes = parameters::of_shape(|name| shape.get(name).cloned());
    let [a, b] = [of_a, of_b].map(|own| own.or(sizes.first().copied()).map(Value::from));
    let is_other = !sizes.is_empty() && !sizes.iter().any(|n| parameters::same_size(*n, stated));
    is_other.then(|| FieldDifference {
        field: NUM_PARAMETERS.to_owned(),
        tier: Tier::Workload,
        a,
        b,
    })
}

/// Each field of `a` with that of the same name in `b`. Mostly both have the same fields in the
/// same order, and this is asked for every pair of many cells: so the field after the last one
/// found is looked at first.
fn beside<'a>(
    a: &'a Contract,
    b: &'a Contract,
) -> impl Iterator<Item = (&'a ContractField, Option<&'a ContractField>)> {
    let mut next = 0;
    // A default that nobody wrote says nothing of the other run.
    let is_default = |field: &ContractField| field.source == Source::Default;
    a.0.iter().filter_map(move |field| {
        let is_it = |other: &ContractField| other.field == field.field;
        let at = if b.0.get(next).is_some_and(is_it) {
            Some(next)
        } else {
            b.0.iter().position(is_it)
        };
        next = at.map_or(next, |at| at + 1);
        let other = at.map(|at| &b.0[at]);
        match (is_default(field), other) {
            (true, None) => None,
            (true, Some(other)) if !is_default(other) => None,
            (false, Some(other)) if is_default(other) => Some((field, None)),
            _ => Some((field, other)),
        }
    })
}

/// Up to here two vocabularies may be one that is padded for other numbers of ranks; beyond they are two.
const PADDED: f64 = 0.05;

fn difference(a: Option<&ContractField>, b: Option<&ContractField>) -> Option<FieldDifference> {
    let either = a.or(b)?;
    let [of_a, of_b] = [a, b].map(|field| field.and_then(|f| class(&f.field, &f.value)));
    let tier = of_a
        .filter(|_| of_a == of_b)
        .map_or(either.tier, |(_, tier)| tier);
    let (a, b) = (a.map(|f| &f.value), b.map(|f| &f.value));
    let sizes = a.and_then(Value::as_f64).zip(b.and_then(Value::as_f64));
    let is_other = |(a, b): (f64, f64)| (a / b - 1.0).abs() > PADDED;
    let tier = match either.field == "padded_vocab_size" && sizes.is_some_and(is_other) {
        true => Tier::Workload,
        false => tier,
    };
    let same = match (a, b) {
        (Some(a), Some(b)) if either.field == NUM_PARAMETERS => match (a.as_u64(), b.as_u64()) {
            (Some(a), Some(b)) => parameters::same_size(a, b),
            _ => agree(a, b),
        },
        (Some(a), Some(b)) => agree(a, b),
        // To state that there is none of it is the same as to state nothing.
        (Some(one), None) | (None, Some(one)) => {
            let is_none = is_further(&either.field) && is_usual(&either.field, one);
            // Few logs state a model's size, and it follows from its shape: `other_size`.
            is_none || either.field == NUM_PARAMETERS
        }
        (None, None) => true,
    };
    (!same).then(|| FieldDifference {
        field: either.field.clone(),
        tier,
        a: a.cloned(),
        b: b.cloned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::results::attest::tests::{job, trace};

    #[test]
    fn effective_values_win_and_declared_ones_are_labelled() {
        let contract = Contract::of(
            &trace(json!({"seq_length": 512, "dropout": 0.1}), None),
            &Claim::of(&job()),
        );
        let field = |name: &str| {
            contract
                .0
                .iter()
                .find(|f| f.field == name)
                .map(|f| (f.value.clone(), f.source))
        };
        assert_eq!(field("seq_length"), Some((json!(512), Source::Effective)));
        assert_eq!(field("dropout"), Some((json!(0.1), Source::Effective)));
        assert_eq!(
            field("global_batch_size"),
            Some((json!(8), Source::Declared))
        );
        assert_eq!(field("packing"), None);
        assert!(contract.declared_only().any(|f| f == "global_batch_size"));
    }

    /// If both logs state a setting, "none" in one of them and a value in the other are a difference.
    #[test]
    fn none_is_a_value_where_both_state_it() {
        let of = |stated| Contract::of(&trace(stated, None), &Claim::of_model(None));
        let pairs = [
            (json!({"sliding_window": 0}), json!({"sliding_window": 512})),
            (
                json!({"mtp_num_layers": "none"}),
                json!({"mtp_num_layers": 2}),
            ),
            (
                json!({"frozen_layers": [0]}),
                json!({"frozen_layers": [0, 1]}),
            ),
            (
                json!({"frozen_layers": []}),
                json!({"frozen_layers": [0, 1]}),
            ),
            (
                json!({"num_parameters": 1_000_000_000}),
                json!({"num_parameters": 7_000_000_000_u64}),
            ),
            (
                json!({"model_name_or_path": "/a/llama-1b"}),
                json!({"model_name_or_path": "b/llama-7b"}),
            ),
        ];
        for (a, b) in pairs {
            let found = differences(&of(a.clone()), &of(b.clone()));
            assert!(
                found.len() == 1 && found[0].is_known(),
                "{a} {b}: {found:?}"
            );
            assert_eq!(found[0].tier, Tier::Workload, "{a} {b}");
        }
        let alike = [
            (json!({}), json!({"sliding_window": 0})),
            (json!({}), json!({"num_parameters": 1_000_000_000})),
            (
                json!({"num_parameters": 8_030_000_000_u64}),
                json!({"num_parameters": 8_000_000_000_u64}),
            ),
            (
                json!({"num_parameters": 8.03e9}),
                json!({"num_params": 8_030_785_536_u64}),
            ),
            (
                json!({"num_parameters": 8_030_261_248_u64}),
                json!({"num_parameters": 8.03e9 as u64}),
            ),
            (
                json!({"seq_length": 128, "sliding_window": 4096}),
                json!({"seq_length": 128, "sliding_window": 0}),
            ),
            (
                json!({"model_name_or_path": "/a/Llama-1b"}),
                json!({"model_name_or_path": "meta/llama-1b"}),
            ),
        ];
        for (a, b) in alike {
            let mut found = differences(&of(a.clone()), &of(b.clone()));
            found.retain(|d| d.field != "seq_length");
            assert_eq!(found, [], "{a} {b}");
        }
    }

    /// One log states the shape and the other one the count of parameters.
    #[test]
    fn a_count_is_held_against_the_shape_of_another_log() {
        let of = |stated| Contract::of(&trace(stated, None), &Claim::of_model(None));
        let shape = of(
            json!({"architecture": "llama", "num_layers": 32, "hidden_size": 4096,
            "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_kv_heads": 8, "vocab_size": 128_256}),
        );
        let sized = |count: u64| of(json!({ "num_parameters": count }));
        for (count, is_other) in [
            (8_000_000_000, false),
            (8_030_261_248, false),
            // Its output matrix may be the embedding.
            (7_504_924_672, false),
            (7_000_000_000, true),
            (1_235_814_400, true),
        ] {
            for (a, b) in [(&shape, &sized(count)), (&sized(count), &shape)] {
                let found = differences(a, b);
                let known = found.iter().filter(|d| d.is_known()).map(|d| &*d.field);
                let wanted = is_other.then_some(NUM_PARAMETERS);
                assert!(known.eq(wanted), "{count}: {found:?}");
                assert_eq!(has_difference(a, b, |d| d.is_known()), is_other);
            }
        }
    }

    #[test]
    fn rounding_and_spelling_are_no_differences() {
        let a = Contract::of(
            &trace(
                json!({"learning_rate": f64::from(3e-4f32), "precision": "torch.bfloat16"}),
                None,
            ),
            &Claim::of(&job()),
        );
        let b = Contract::of(&trace(json!({}), None), &Claim::of(&job()));
        assert_eq!(differences(&a, &b), []);
    }

    #[test]
    fn the_2_62x_chart_is_a_difference() {
        let (mut amd, mut nvidia) = (job(), job());
        amd.data.global_batch_size = 128;
        nvidia.precision = "fp8".into();
        let contract = |job| Contract::of(&trace(json!({}), None), &Claim::of(job));
        let found = differences(&contract(&amd), &contract(&nvidia));
        let summary: Vec<_> = found
            .iter()
            .map(|d| (d.field.as_str(), d.tier, d.is_known()))
            .collect();
        assert_eq!(
            summary[..2],
            [
                ("global_batch_size", Tier::Workload, true),
                ("precision", Tier::Workload, true)
            ]
        );
        assert_eq!(
            (&found[1].a, &found[1].b),
            (&Some("bf16".into()), &Some("fp8".into()))
        );
        // Settings that only fp8 has are gaps, not disagreements.
        assert!(summary[2..].iter().all(|(.., known)| !known), "{summary:?}");
    }

    #[test]
    fn formats_of_one_class_are_the_same_work() {
        let of = |precision: &str| {
            Contract::of(
                &trace(json!({ "precision": precision }), None),
                &Claim::of(&job()),
            )
        };
        let tier = |a: &str, b: &str| {
            differences(&of(a), &of(b))
                .iter()
                .find(|d| d.field == "precision")
                .map(|d| d.tier)
        };
        assert_eq!(tier("bfloat16", "torch.float16"), Some(Tier::Execution));
        assert_eq!(tier("fp8", "fp8_hybrid"), Some(Tier::Execution));
        assert_eq!(tier("fp8", "mxfp8"), Some(Tier::Execution));
        for (a, b) in [
            ("fp32", "bf16"),
            ("bf16", "fp8"),
            ("fp8", "fp4"),
            ("tf32", "fp32"),
            ("mxfp8", "bf16"),
        ] {
            assert_eq!(tier(a, b), Some(Tier::Workload), "{a} {b}");
        }
        assert_eq!(tier("bf16", "torch.bfloat16"), None);
    }

    #[test]
    fn words_for_one_speed_do_not_refuse_a_comparison() {
        let tier = |field: &str, a: &str, b: &str| {
            let of = |word: &str| {
                Contract::of(&trace(json!({ field: word }), None), &Claim::of_model(None))
            };
            differences(&of(a), &of(b))
                .iter()
                .find(|d| d.field == field)
                .map(|d| d.tier)
        };
        assert_eq!(tier("optimizer", "adam", "adamw"), Some(Tier::Convergence));
        assert_eq!(tier("optimizer", "FusedAdam", "adamw"), None);
        // How many kernels an update takes is the trainer's choice, and the update is the same.
        assert_eq!(tier("optimizer", "adamw_torch", "adamw_torch_fused"), None);
        assert_eq!(tier("optim", "adamw_torch", "adamw_torch_fused"), None);
        assert_eq!(tier("optimizer", "sgd", "adamw"), Some(Tier::Workload));
        assert_eq!(tier("data", "mock", "random"), Some(Tier::Convergence));
        assert_eq!(tier("data", "mock", "real"), Some(Tier::Workload));
        assert_eq!(tier("precision", "bf16-mixed", "bf16"), None);
    }

    /// A rank of adapters that one log has and the other states to be none is other work; a log that says
    /// nothing of it has the same as one that states none.
    #[test]
    fn none_that_is_stated_is_a_value() {
        let of = |stated: Value| Contract::of(&trace(stated, None), &Claim::of_model(None));
        let found = |a: &Contract, b: &Contract| {
            let all = differences(a, b);
            all.iter().map(FieldDifference::words).collect::<Vec<_>>()
        };
        let (none, some) = (of(json!({"lora_rank": 0})), of(json!({"lora_rank": 16})));
        assert_eq!(found(&some, &none), ["lora_rank: 16, not 0"]);
        assert!(has_difference(&some, &none, |_| true));
        assert_eq!(found(&none, &of(json!({}))), [""; 0]);
        assert_eq!(found(&of(json!({"lora_r": "none"})), &none), [""; 0]);
        assert!(!differences(&some, &of(json!({})))[0].is_known());
    }

    fn any_contract() -> impl Strategy<Value = Contract> {
        let field = (
            0..SETTINGS.len(),
            prop_oneof![
                Just(json!(1)),
                Just(json!(2.5)),
                Just(json!("x")),
                Just(json!(true))
            ],
        );
        proptest::collection::vec(field, 0..12).prop_map(|fields| {
            let unique: BTreeMap<usize, Value> = fields.into_iter().collect();
            let field = |(i, value): (usize, Value)| ContractField {
                field: SETTINGS[i].name.to_owned(),
                tier: SETTINGS[i].tier,
                value,
                source: Source::Effective,
            };
            Contract(unique.into_iter().map(field).collect())
        })
    }

    proptest! {
        #[test]
        fn differences_are_symmetric_and_none_with_itself(a in any_contract(), b in any_contract()) {
            let swapped: Vec<_> = differences(&b, &a).into_iter().map(|d| FieldDifference { a: d.b, b: d.a, ..d }).collect();
            prop_assert_eq!(differences(&a, &b), swapped);
            prop_assert_eq!(differences(&a, &a), vec![]);
        }

        /// A file that somebody wrote may have its fields in any order.
        #[test]
        fn the_order_of_fields_is_no_difference(a in any_contract(), b in any_contract(), turn in 0usize..12) {
            let mut turned = b.clone();
            turned.0.reverse();
            turned.0.rotate_left(turn.min(b.0.len()));
            prop_assert_eq!(differences(&a, &turned), differences(&a, &b));
            let by_name = |c: &Contract| -> BTreeMap<String, Value> {
                c.0.iter().map(|f| (f.field.clone(), f.value.clone())).collect()
            };
            let (left, right) = (by_name(&a), by_name(&b));
            let differ = |s: &&super::super::settings::Setting| match (left.get(&s.name), right.get(&s.name)) {
                (Some(a), Some(b)) => !agree(a, b),
                (Some(one), None) | (None, Some(one)) => !(is_further(&s.name) && is_usual(&s.name, one)),
                (None, None) => false,
            };
            let expected: Vec<&str> = SETTINGS.iter().filter(differ).map(|s| s.name.as_str()).collect();
            let found = differences(&a, &b);
            prop_assert_eq!(found.iter().map(|d| d.field.as_str()).collect::<Vec<_>>(), expected);
        }
    }
}
