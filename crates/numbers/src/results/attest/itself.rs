//! What a log says against itself: one setting with two values, and counts that do not fit each other.
//! Nobody knows which of the two was run, so neither is attested.

use serde_json::Value;
use tprimat_base::words::plain::counted;
use tprimat_logs::Trace;

use super::{AttestationStatus, FieldAttestation, padding_parameters, stated_count};
use crate::results::{
    Claim, count_parameters,
    parameters::{self, same_size},
    settings::{
        NUM_EXPERTS, NUM_PARAMETERS, PRECISION, SETTINGS, Setting, agree, canonical, class, is_off,
        setting, show,
    },
    unlisted::is_count_of_experts,
};

pub(super) fn contradictions(trace: &Trace, claim: &Claim) -> Vec<FieldAttestation> {
    let spelled = SETTINGS
        .iter()
        .filter_map(|setting| spelled(trace, setting));
    let restated = SETTINGS
        .iter()
        .filter_map(|setting| restated(trace, setting));
    let counts = [
        restated_parameters(trace),
        parameters(trace, claim),
        degrees(trace, claim),
        experts_by_ranks(trace),
        micro_batches(trace),
        nodes(trace),
        experts(trace, claim),
    ];
    spelled
        .chain(restated)
        .chain(counts.into_iter().flatten())
        .collect()
}

fn contradicted(
    field: &str,
    declared: Option<Value>,
    effective: Value,
    arithmetic: String,
) -> FieldAttestation {
    FieldAttestation {
        field: field.to_owned(),
        declared,
        effective: Some(effective),
        status: AttestationStatus::Contradicted,
        arithmetic: Some(arithmetic),
    }
}

/// A setting in two spellings that disagree.
fn spelled(trace: &Trace, setting: &Setting) -> Option<FieldAttestation> {
    // Trainers write −1 where nothing is set.
    let is_set = |value: &Value| !value.as_f64().is_some_and(|n| n < 0.0);
    let is_one = |a: &Value, b: &Value| {
        let classes = [a, b].map(|value| class(&setting.name, value));
        let is_one_work = classes[0].is_some() && classes[0] == classes[1];
        agree(a, b) || is_one_work && setting.name != PRECISION
    };
    let own = setting.stated(&trace.effective.0);
    let mut all = own
        .chain(elsewhere(trace, &setting.name))
        .filter(|(_, value)| is_set(value));
    let (name, first) = all.next()?;
    let is_other = |name: &str, value: &Value| match name {
        WEIGHTS => !may_hold(value, &first),
        _ => !is_one(&first, value),
    };
    let (other, second) = all.find(|(name, value)| is_other(name, value))?;
    let [a, b] = [&first, &second].map(|value| show(Some(value)));
    let text = format!("the log states {name} {a} and {other} {b}, which are one setting");
    Some(contradicted(&setting.name, None, first, text))
}

/// Names by which relatives of the Trainer state a setting of the table beside its own ones. They are no aliases: a log that has
/// such a name alone may mean a limit or a default by it.
const ELSEWHERE: [(&str, &str); 4] = [
    ("seq_length", "max_seq_length"),
    ("micro_batch_size", "per_device_train_batch_size"),
    (PRECISION, "mixed_precision"),
    (PRECISION, WEIGHTS),
];

/// The format in which the weights are held, which may be a wider one than that of the products.
const WEIGHTS: &str = "torch_dtype";

fn elsewhere(trace: &Trace, setting: &str) -> Vec<(&'static str, Value)> {
    let names = ELSEWHERE.iter().filter(|(of, _)| *of == setting);
    let stated = names.filter_map(|(_, name)| {
        let value = canonical(trace.effective.0.get(*name)?);
        // `no` mixed precision, and weights in whatever format their file has.
        (!is_off(&value) && value != "auto").then_some((*name, value))
    });
    stated.collect()
}

/// May weights of one format be multiplied in another? Wider ones are converted.
fn may_hold(weights: &Value, products: &Value) -> bool {
    let bits = |format: &Value| match format.as_str()? {
        "fp32" | "tf32" => Some(32),
        "bf16" | "fp16" => Some(16),
        _ => None,
    };
    match (bits(weights), bits(products)) {
        (Some(weights), Some(products)) if weights < products => false,
        (Some(weights_bits), Some(bits)) if weights_bits == bits && bits < 32 => {
            weights == products
        }
        _ => true,
    }
}

/// A setting that is stated again later, with another value.
fn restated(trace: &Trace, setting: &Setting) -> Option<FieldAttestation> {
    let (first, later) = (
        setting.effective(&trace.effective.0)?,
        setting.effective(&trace.restated.0)?,
    );
    (!agree(&first, &later)).then(|| at_first(&setting.name, first, &later))
}

fn restated_parameters(trace: &Trace) -> Option<FieldAttestation> {
    let first = Value::from(trace.num_parameters?);
    let later = trace.restated.0.get("num_parameters")?;
    (!agree(&first, later)).then(|| at_first("num_parameters", first, later))
}

fn at_first(name: &str, first: Value, later: &Value) -> FieldAttestation {
    let [a, b] = [&first, later].map(|value| show(Some(value)));
    let text = format!("{name} is {a} at first, later {b}");
    contradicted(name, None, first, text)
}

/// A count of parameters beside the model's shape: the claimed one, else the one that the log states.
fn parameters(trace: &Trace, claim: &Claim) -> Option<FieldAttestation> {
    let model = &claim.job.model;
    let claimed = count_parameters(model).map(|count| count + padding_parameters(trace, model));
    let mut sizes = Vec::from_iter(claimed);
    if claimed.is_none() {
        let settings = &trace.effective.0;
        let stated = |name: &str| setting(name)?.effective(settings);
        sizes = parameters::of_shape(|name| match name {
            "vocab_size" => stated("padded_vocab_size").or_else(|| stated(name)),
            name => stated(name),
        });
    }
    let shape = *sizes.first()?;
    // Some trainers leave the table of positions out, and others count adapters in.
    sizes.push(shape.saturating_sub(model.max_position_embeddings * model.hidden_size));
    let adapters = trace.totals.get("trainable_parameters").copied();
    let adapters = adapters.unwrap_or_default() as u64;
    let fits = |stated: u64| {
        let without = stated.saturating_sub(adapters);
        let mut sizes = sizes.iter();
        sizes.any(|size| [stated, without].iter().any(|n| same_size(*n, *size)))
    };
    // One rank alone holds no more than the whole model has, and what is trained beside it is small.
    let of_rank = trace
        .num_parameters_per_rank
        .map(|count| ("of one rank a number of parameters of", count));
    // Without a pipeline all ranks hold the same part of a dense model, which TP divides.
    let degree = |name: &str| count(trace, &format!("{name}_model_parallel_size"));
    let tensor =
        degree("tensor").filter(|_| degree("pipeline") == Some(1) && model.num_experts == 0);
    let is_too_few =
        |count: u64| tensor.is_some_and(|tp| count.saturating_mul(tp.max(1)) < shape - shape / 10);
    let of_rank =
        of_rank.filter(|(_, count)| *count > shape.saturating_add(shape / 2) || is_too_few(*count));
    let mut all = parameters::stated(trace);
    let (name, stated) = all.find(|(_, stated)| !fits(*stated)).or(of_rank)?;
    let text = format!("the log states {name} {stated}, and its model's shape has {shape}");
    Some(contradicted(
        NUM_PARAMETERS,
        Some(shape.into()),
        stated.into(),
        text,
    ))
}

fn count(trace: &Trace, name: &str) -> Option<u64> {
    setting(name)?.effective(&trace.effective.0)?.as_u64()
}

/// The degrees of parallelism, whose product is the number of devices. A degree that is not stated may
/// be any. Those of a result file are its labels.
fn degrees(trace: &Trace, claim: &Claim) -> Option<FieldAttestation> {
    const DEGREES: [(&str, &str); 4] = [
        ("tensor_model_parallel_size", "TP"),
        ("pipeline_model_parallel_size", "PP"),
        ("context_parallel_size", "CP"),
        ("data_parallel_size", "DP"),
    ];
    let count = |name: &str| stated_count(trace, claim, name);
    let devices = count("num_gpus").filter(|n| *n > 0)?;
    let stated = DEGREES.map(|(field, name)| Some((name, count(field)?)));
    let is_whole = stated.iter().all(Option::is_some);
    let stated: Vec<(&str, u64)> = stated.into_iter().flatten().collect();
    let product = stated
        .iter()
        .try_fold(1u64, |product, (_, n)| product.checked_mul((*n).max(1)))?;
    let fits = product == devices || !is_whole && devices.is_multiple_of(product);
    (!fits).then(|| {
        let factors = stated.iter().map(|(name, n)| format!("{name} {n}"));
        let factors = factors.collect::<Vec<_>>().join(" × ");
        let text = format!("{factors} = {product}, and num_gpus is {devices}");
        contradicted("degree_product", None, product.into(), text)
    })
}

/// Ranks among which the experts are parted, which divide the devices.
fn experts_by_ranks(trace: &Trace) -> Option<FieldAttestation> {
    let devices = count(trace, "num_gpus").filter(|n| *n > 0)?;
    let ranks = count(trace, "expert_model_parallel_size").filter(|n| *n > 0)?;
    (!devices.is_multiple_of(ranks)).then(|| {
        let text = format!(
            "EP {ranks} does not divide {}",
            counted(devices as usize, "device")
        );
        contradicted("expert_model_parallel_size", None, ranks.into(), text)
    })
}

/// A batch is made of whole micro-batches, one or several of each data-parallel rank.
fn micro_batches(trace: &Trace) -> Option<FieldAttestation> {
    let batch = count(trace, "global_batch_size")?;
    let micro = count(trace, "micro_batch_size").filter(|n| *n > 0)?;
    // With both of these the whole product is checked.
    let accumulation = count(trace, "gradient_accumulation_steps");
    let ranks = count(trace, "data_parallel_size").filter(|_| accumulation.is_none());
    let at_once = micro.checked_mul(ranks.unwrap_or(1).max(1))?;
    (!batch.is_multiple_of(at_once)).then(|| {
        let of = ranks.map_or_else(String::new, |ranks| format!(" × DP {ranks}"));
        let text = format!("a global batch of {batch} is not a multiple of MBS {micro}{of}");
        contradicted("micro_batch_size", None, micro.into(), text)
    })
}

/// Nodes and the devices of each, whose product is the number of devices.
fn nodes(trace: &Trace) -> Option<FieldAttestation> {
    const OF_NODE: [&str; 4] = [
        "gpus_per_node",
        "num_gpus_per_node",
        "nproc_per_node",
        "local_world_size",
    ];
    let of_node = |name| Some((name, trace.effective.0.get(name)?.as_u64()?));
    let (name, each) = OF_NODE.into_iter().find_map(of_node)?;
    let launched = || trace.effective.0.get("nnodes")?.as_u64();
    let nodes = count(trace, "num_nodes").or_else(launched)?;
    let devices = count(trace, "num_gpus")?;
    let product = nodes.checked_mul(each)?;
    (product != devices).then(|| {
        let text = format!(
            "{nodes} nodes × {name} {each} = {product}, and the log states num_gpus {devices}"
        );
        contradicted("num_gpus", None, product.into(), text)
    })
}

/// Several experts a layer, where the model is one whose layers have one feed-forward part. The
/// other way round, the setting itself is contradicted.
fn experts(trace: &Trace, claim: &Claim) -> Option<FieldAttestation> {
    let stated = || setting("architecture")?.effective(&trace.effective.0);
    let architecture = claim.declares("architecture").or_else(stated)?;
    let is_dense = |of: &&str| tprimat_job::architecture(of).is_some_and(|a| !a.has_experts());
    let architecture = architecture.as_str().filter(is_dense)?;
    let stated = setting(NUM_EXPERTS)?.stated(&trace.effective.0);
    let stated = stated.map(|(name, count)| (name.to_owned(), count));
    let others = crate::results::settings::unlisted(&trace.effective.0).into_iter();
    let mut experts = stated.chain(others.filter(|(name, _)| is_count_of_experts(name)));
    let (name, count) = experts.find(|(_, count)| count.as_u64().is_some_and(|n| n > 1))?;
    let text = format!(
        "the log states {name} {count}, a mixture of experts, and {architecture} is a dense architecture"
    );
    Some(contradicted(NUM_EXPERTS, Some(1.into()), count, text))
}
