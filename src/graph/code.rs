//! Digests of tprimat's own sources, taken at build time (`build.rs`, `sources.rs`).

/// The digests that keys cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeDigests {
    /// The sources and libraries of all that renders, parses, computes, draws and reports.
    pub analysis: String,
    /// The trainer that ships with tprimat.
    pub native: String,
}

impl Default for CodeDigests {
    fn default() -> Self {
        Self {
            analysis: env!("TPRIMAT_ANALYSIS").into(),
            native: env!("TPRIMAT_NATIVE").into(),
        }
    }
}

/// Digest of everything that was compiled in: two binaries that agree here behave the same.
pub const BUILD: &str = env!("TPRIMAT_BUILD");
