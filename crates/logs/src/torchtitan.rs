//! torchtitan's device mesh; formats.toml has its other lines.

use super::{
    builder::Builder,
    engine::Engine,
    format::{Reader, shipped},
    lines::Line,
    values::{count_after, has},
};

pub struct Torchtitan(Engine);

impl Default for Torchtitan {
    fn default() -> Self {
        Self(Engine::new(shipped("torchtitan")))
    }
}

impl Reader for Torchtitan {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        if !self.0.started() && has(&line.text, "device mesh with") {
            mesh(&line.text, out);
        }
        self.0.line(line, out);
    }

    fn end(&mut self, out: &mut Builder) {
        self.0.end(out);
    }
}

/// `Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]`, or with `pp=1, dp_shard=8, …` since
/// 2025.
fn mesh(text: &str, out: &mut Builder) {
    let named = |name: &str| -> Option<u64> {
        if let Some((names, sizes)) = text.split_once("], [") {
            let names = names.rsplit_once('[')?.1;
            let at = names
                .split(',')
                .position(|n| n.trim().trim_matches(['\'', '"']) == name)?;
            return sizes
                .trim_end_matches(']')
                .split(',')
                .nth(at)?
                .trim()
                .parse()
                .ok();
        }
        [" ", ","]
            .iter()
            .find_map(|before| count_after(text, &format!("{before}{name}=")))
    };
    if !has(text, "], [") && !has(text, "dp_shard=") {
        return;
    }
    let size = |name: &str| named(name).filter(|n| *n > 0 && *n < 1 << 24).unwrap_or(1);
    let shard = if named("dp_shard").is_some() {
        size("dp_shard")
    } else {
        size("dp_shard_mod_ep") * size("dp_shard_in_ep")
    };
    let (dp, tp, pp, cp) = (
        shard * size("dp_replicate"),
        size("tp"),
        size("pp"),
        size("cp"),
    );
    let Some(all) = [dp, tp, pp, cp]
        .iter()
        .try_fold(1u64, |all, n| all.checked_mul(*n))
    else {
        return;
    };
    for (name, n) in [
        ("data_parallel_size", dp),
        ("tensor_model_parallel_size", tp),
        ("pipeline_model_parallel_size", pp),
        ("context_parallel_size", cp),
        ("num_gpus", all),
    ] {
        out.set(name, n);
    }
}

#[cfg(test)]
mod tests;
