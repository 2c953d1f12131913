//! What data-parallel ranks share out, and its names: each framework has a word of its own for the
//! same thing.

/// How much of the training state each data-parallel rank keeps only a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharding {
    None,
    /// Optimizer state and master weights.
    Zero1,
    /// These and gradients.
    Zero2,
    /// These and weights.
    Zero3,
    /// Shared out within a host and replicated over hosts.
    Hybrid,
}

/// Each with its names; the first one is the name of the thing.
const NAMES: [(Sharding, &[&str]); 5] = [
    (Sharding::None, &["none", "ddp", "no_shard"]),
    (
        Sharding::Zero1,
        &["zero1", "distributed_optimizer", "optim"],
    ),
    (Sharding::Zero2, &["zero2", "shard_grad_op"]),
    (Sharding::Zero3, &["zero3", "full_shard", "fsdp", "fsdp2"]),
    (Sharding::Hybrid, &["hsdp"]),
];

impl Sharding {
    /// `None`: nobody calls any of them so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|(_, names)| names.contains(&name))
            .map(|(sharding, _)| *sharding)
    }

    /// All names, of every kind.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().flat_map(|(_, names)| names.iter().copied())
    }

    /// The names of this kind, the usual one first.
    #[must_use]
    pub fn own_names(self) -> &'static [&'static str] {
        NAMES
            .iter()
            .find(|(sharding, _)| *sharding == self)
            .map_or(&[], |(_, names)| names)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.own_names().first().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_means_one_thing() {
        let mut names: Vec<&str> = Sharding::names().collect();
        for name in &names {
            let sharding = Sharding::named(name).unwrap();
            assert_eq!(Sharding::named(sharding.name()), Some(sharding), "{name}");
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(Sharding::named("zero4"), None);
        assert_eq!(Sharding::named("fsdp2").map(Sharding::name), Some("zero3"));
    }
}
