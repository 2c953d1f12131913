//! How a cell's GPUs are divided: TP × PP × CP × DP = GPUs, on how many nodes, sharded how.

use std::sync::Arc;

use super::SettingsReader;
use crate::{
    config::{Origin, schema::Parallelism},
    error::did_you_mean,
    job::{ParallelismJob, Sharding},
    matrix::Cell,
};

/// A block of `parallelism`, and its path.
pub(super) type Block = (Arc<str>, Parallelism);

/// Err: the strategy says nothing for the cell, or asks for more GPUs than one host has.
pub(super) fn parallelism(
    r: &mut SettingsReader,
    cell: &Cell,
    block: Option<&Block>,
    platform_gpus: Option<u64>,
) -> Result<ParallelismJob, String> {
    let Cell {
        platform,
        model,
        parallelism: strategy,
        ..
    } = cell;
    let Some((path, block)) = block else {
        let gpus = platform_gpus.unwrap_or(1);
        return Err(format!(
            "the strategy `{strategy}` says nothing for {model} on {platform}: add `{model}: {{ {platform}: {{ TP: 1, PP: 1, DP: {gpus} }} }}` below `parallelism.{strategy}`, with the degrees that you want"
        ));
    };
    r.is_guessing |= r.view.is_guessed(path);
    // One device where nobody says how many there are.
    let of_nodes = block.nodes.unwrap_or(1);
    let of_platform = || Some(platform_gpus?.saturating_mul(of_nodes));
    let num_gpus = block.num_gpus.or_else(of_platform).unwrap_or(1);
    let given_by = || given_by(r, platform);
    let num_nodes = nodes(
        path,
        (platform, &given_by),
        (num_gpus, block.nodes),
        platform_gpus,
    )?;
    let (tp, pp, cp) = (
        block.tensor_model_parallel_size.unwrap_or(1),
        block.pipeline_model_parallel_size.unwrap_or(1),
        block.context_parallel_size.unwrap_or(1),
    );
    let model_parallel = tp.saturating_mul(pp).saturating_mul(cp);
    let dp = block
        .data_parallel_size
        .unwrap_or((num_gpus / model_parallel).max(1));
    if model_parallel.saturating_mul(dp) != num_gpus && !r.is_guessing {
        // The problem points at the block, which does not show what comes from elsewhere.
        let given_by = block.num_gpus.is_none().then(given_by).flatten();
        let by = given_by.map_or_else(String::new, |by| format!(" (set by {by})"));
        r.problem_of_cell(
            path,
            format!(
                "TP {tp} × PP {pp} × CP {cp} × DP {dp} = {}, and num_gpus is {num_gpus}{by}",
                model_parallel.saturating_mul(dp)
            ),
            "TP × PP × CP × DP must equal the number of GPUs",
        );
    }
    let sharding = sharding(r, path, block.sharding.as_deref());
    Ok(ParallelismJob {
        tensor_model_parallel_size: tp,
        pipeline_model_parallel_size: pp,
        context_parallel_size: cp,
        data_parallel_size: dp,
        expert_model_parallel_size: block.expert_model_parallel_size.unwrap_or(1),
        num_gpus,
        num_nodes,
        sharding,
    })
}

/// What sets a platform's number of GPUs where config.yaml does not, or is not heeded.
fn given_by(r: &SettingsReader, platform: &str) -> Option<String> {
    let path = format!("hardware.platforms.{platform}.num_gpus");
    match r.view.origin(&path)?.1 {
        Origin::Environment(name) => Some(format!("${name}")),
        Origin::Set => Some("--set".to_owned()),
        _ => None,
    }
}

/// The hosts of a run: those that are stated, else as many as its GPUs need. All have the same
/// number of them; in words why that cannot be.
fn nodes(
    path: &str,
    (platform, given_by): (&str, &dyn Fn() -> Option<String>),
    (num_gpus, stated): (u64, Option<u64>),
    of_host: Option<u64>,
) -> Result<u64, String> {
    let told = || {
        let of_host = of_host.unwrap_or_default();
        let by = given_by();
        let by = by.map_or_else(String::new, |by| format!(", set by {by}"));
        format!("a host of {platform} has {of_host} (`hardware.platforms.{platform}.num_gpus`{by})")
    };
    let nodes = match (stated, of_host) {
        (Some(nodes), _) => nodes,
        (None, Some(of_host)) if num_gpus > of_host => {
            if num_gpus % of_host != 0 {
                return Err(format!(
                    "`{path}` asks for {num_gpus} GPUs, and {}: a run over several hosts takes whole hosts; `nodes` states another number of hosts",
                    told()
                ));
            }
            num_gpus / of_host
        }
        _ => 1,
    };
    if num_gpus % nodes != 0 {
        return Err(format!(
            "`{path}` asks for {num_gpus} GPUs on {nodes} nodes: each node must have the same number of them"
        ));
    }
    match of_host {
        Some(of_host) if num_gpus / nodes > of_host => Err(format!(
            "`{path}` asks for {num_gpus} GPUs on {nodes} nodes, so {} on each, and {}",
            num_gpus / nodes,
            told()
        )),
        _ => Ok(nodes),
    }
}

fn sharding(r: &mut SettingsReader, path: &str, stated: Option<&str>) -> String {
    // `ZeRO-3` and `zero_3` are what others write.
    let name = stated.unwrap_or_default().to_lowercase();
    let name = name.replace("zero-", "zero").replace("zero_", "zero");
    let known = Sharding::named(&name);
    // A recipe refuses those that it has not. A name that nobody knows would change nothing.
    if !name.is_empty() && known.is_none() {
        let message = format!("`{name}` is not a way of sharding");
        let problem = r.view.problem_at(path, message, "named here");
        let help = did_you_mean(&name, Sharding::names()).unwrap_or_else(|| {
            format!(
                "expected one of {}",
                Sharding::names().collect::<Vec<_>>().join(", ")
            )
        });
        r.push_of_cell(problem.help(help));
    }
    // One word for plain data parallelism: jobs that ask for the same must be the same, and every
    // recipe know it.
    if known == Some(Sharding::None) {
        Sharding::None.name().to_owned()
    } else {
        name
    }
}
