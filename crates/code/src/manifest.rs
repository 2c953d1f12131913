//! What a manifest depends on. Reads as much of Cargo.toml as this workspace writes: one dependency
//! a line.

/// Lines of `[dependencies]`, each with the name on it.
fn dependencies(manifest: &str) -> Vec<(&str, &str)> {
    let mut lines = manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[dependencies]")
        .skip(1);
    let section = lines.by_ref().take_while(|line| !line.starts_with('['));
    section
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let name = line.split(['.', ' ', '=']).next()?;
            Some((name, line)).filter(|_| !name.is_empty())
        })
        .collect()
}

/// Crates of this workspace that a manifest depends on, without their common prefix.
#[must_use]
pub fn own_dependencies(manifest: &str) -> Vec<&str> {
    dependencies(manifest)
        .into_iter()
        .filter_map(|(name, _)| name.strip_prefix("tprimat-"))
        .collect()
}

fn is_optional(line: &str) -> bool {
    let is_written = |c: &char| !c.is_whitespace();
    let line: String = line.chars().filter(is_written).collect();
    line.contains("optional=true")
}

/// Libraries of others that a manifest depends on. An optional one adds a command or a format and has no
/// part in what a task makes: a build with it and one without it take each other's results as fresh.
#[must_use]
pub fn foreign_dependencies(manifest: &str) -> Vec<&str> {
    dependencies(manifest)
        .into_iter()
        .filter(|(name, line)| !name.starts_with("tprimat-") && !is_optional(line))
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_crate_itself_links_counts() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\n# Why.\nserde.workspace = true\nnix = { workspace = true }\n\
                        object_store = { workspace = true, optional = true }\narrow = {workspace=true, optional=true}\n\
                        tprimat-job.workspace = true\n\n[dev-dependencies]\nproptest = \"1\"\n";
        let names: Vec<_> = dependencies(manifest).iter().map(|of| of.0).collect();
        assert_eq!(
            names,
            ["serde", "nix", "object_store", "arrow", "tprimat-job"]
        );
        assert_eq!(own_dependencies(manifest), ["job"]);
        assert_eq!(foreign_dependencies(manifest), ["serde", "nix"]);
        assert!(dependencies("[package]\nname = \"x\"\n").is_empty());
    }
}
