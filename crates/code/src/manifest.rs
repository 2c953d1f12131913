//! What a manifest depends on. Reads as much of Cargo.toml as this workspace writes: one dependency
//! a line.

/// Names in `[dependencies]`, in their order.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut lines = manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[dependencies]")
        .skip(1);
    let section = lines.by_ref().take_while(|line| !line.starts_with('['));
    section
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            line.split(['.', ' ', '='])
                .next()
                .filter(|name| !name.is_empty())
        })
        .collect()
}

/// Those of them that are crates of this workspace, without their common prefix.
#[must_use]
pub fn own_dependencies(manifest: &str) -> Vec<&str> {
    dependencies(manifest)
        .into_iter()
        .filter_map(|name| name.strip_prefix("tprimat-"))
        .collect()
}

/// Those of them that are libraries of others.
#[must_use]
pub fn foreign_dependencies(manifest: &str) -> Vec<&str> {
    dependencies(manifest)
        .into_iter()
        .filter(|name| !name.starts_with("tprimat-"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_crate_itself_links_counts() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\n# Why.\nserde.workspace = true\nnix = { workspace = true }\n\
                        tprimat-job.workspace = true\n\n[dev-dependencies]\nproptest = \"1\"\n";
        assert_eq!(dependencies(manifest), ["serde", "nix", "tprimat-job"]);
        assert_eq!(own_dependencies(manifest), ["job"]);
        assert_eq!(foreign_dependencies(manifest), ["serde", "nix"]);
        assert!(dependencies("[package]\nname = \"x\"\n").is_empty());
    }
}
