//! What a project says, as far as tests change it, and the files that say so.

use crate::support::tasks::{CONFIG, MATRIX, RECIPE, TEMPLATE, TRAINER};

pub const NEW_MODULE: &str = "lib/deep/new.cu";

#[derive(Clone, Debug, PartialEq)]
pub struct World {
    // Read by jobs.
    pub seq_length: u32,
    /// An override of `seq_length` for the cells of `small`.
    pub small_seq_length: Option<u32>,
    pub learning_rate: u32,
    pub norm_eps_of_large: u32,
    pub flavor: u32,
    /// Values of the axis `seed`, in order.
    pub seeds: Vec<u32>,
    // Read by launches.
    pub template: u32,
    pub recipe_file: u32,
    pub trainer: u32,
    /// A module below the script's folder, which nobody declares.
    pub module: u32,
    /// Another one, which appears and goes.
    pub new_module: Option<u32>,
    pub platform_env: u32,
    pub framework_env: u32,
    pub repeats: u32,
    // Read by later tasks.
    pub skip_steps: u32,
    pub price: u32,
    // Read by the template engine, which drops it.
    pub template_spelling: u32,
    // Read by nobody, or by nothing that is in a key.
    pub description: u32,
    pub comments: u32,
    pub blank_lines: u32,
    pub key_order: u32,
    pub recipe_toml: u32,
    pub unknown_files: u32,
}

impl Default for World {
    fn default() -> Self {
        Self {
            seq_length: 64,
            small_seq_length: None,
            learning_rate: 1,
            norm_eps_of_large: 5,
            flavor: 0,
            seeds: vec![1],
            template: 0,
            recipe_file: 0,
            trainer: 0,
            module: 0,
            new_module: None,
            platform_env: 0,
            framework_env: 0,
            repeats: 2,
            skip_steps: 1,
            price: 1,
            template_spelling: 0,
            description: 0,
            comments: 0,
            blank_lines: 0,
            key_order: 0,
            recipe_toml: 0,
            unknown_files: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub model: &'static str,
    pub seed: u32,
}

impl Cell {
    pub fn id(&self) -> String {
        format!("cpu/cmd/{}/single@seed={}", self.model, self.seed)
    }
}

impl World {
    /// In matrix order.
    pub fn cells(&self) -> Vec<Cell> {
        ["small", "large"]
            .iter()
            .flat_map(|model| self.seeds.iter().map(|seed| Cell { model, seed: *seed }))
            .collect()
    }

    /// All that a training of `cell` is told, in the test's own words.
    pub fn job(&self, cell: &Cell) -> String {
        let seq_length = if cell.model == "small" {
            self.small_seq_length
        } else {
            None
        }
        .unwrap_or(self.seq_length);
        let norm_eps = if cell.model == "large" {
            self.norm_eps_of_large
        } else {
            5
        };
        let Self {
            learning_rate,
            flavor,
            ..
        } = self;
        format!("{cell:?} seq {seq_length} eps {norm_eps} lr {learning_rate} flavor {flavor}")
    }

    pub fn files(&self) -> Vec<(&'static str, String)> {
        let new = self.new_module.map(|n| (NEW_MODULE, format!("# {n}\n")));
        let files = vec![
            ("config.yaml", self.config()),
            ("matrix.toml", self.matrix()),
            ("templates/cmd.sh.j2", self.template()),
            ("recipes/cmd/recipe.toml", self.recipe()),
            (
                "recipes/cmd/helper.sh",
                format!("# helps {}\n", self.recipe_file),
            ),
            ("train.sh", format!("{TRAINER}# {}\n", self.trainer)),
            ("lib/net.py", format!("# {}\n", self.module)),
            ("notes.md", format!("note {}\n", self.unknown_files)),
            ("conf/unnamed.yaml", format!("a: {}\n", self.unknown_files)),
            (".hidden/x.py", format!("# {}\n", self.unknown_files)),
        ];
        files.into_iter().chain(new).collect()
    }

    fn config(&self) -> String {
        let text = replaced(
            CONFIG,
            &[
                ("seq_length: 64", format!("seq_length: {}", self.seq_length)),
                (
                    "learning_rate: 1e-3",
                    format!("learning_rate: {}e-3", self.learning_rate),
                ),
                (
                    "norm_eps: 1e-5",
                    format!("norm_eps: 1e-{}", self.norm_eps_of_large),
                ),
                ("flavor: 0", format!("flavor: {}", self.flavor)),
                (
                    "OF_PLATFORM: \"0\"",
                    format!("OF_PLATFORM: \"{}\"", self.platform_env),
                ),
                (
                    "OF_FRAMEWORK: \"0\"",
                    format!("OF_FRAMEWORK: \"{}\"", self.framework_env),
                ),
                ("skip_steps: 1", format!("skip_steps: {}", self.skip_steps)),
                (
                    "per_gpu_hour: 1.00",
                    format!("per_gpu_hour: {}.00", self.price),
                ),
                ("the first words", format!("words {}", self.description)),
            ],
        );
        let mut blocks: Vec<&str> = text.trim_end().split("\n\n").collect();
        let turn = self.key_order as usize % blocks.len();
        blocks.rotate_left(turn);
        let gap = format!("\n\n{}", "\n".repeat(self.blank_lines as usize));
        let mut text = format!("# remark {}\n{}\n", self.comments, blocks.join(&gap));
        if self.comments % 2 == 1 {
            text = text.replace("training:\n", "training: # how\n");
        }
        text
    }

    fn matrix(&self) -> String {
        let seeds: Vec<String> = self.seeds.iter().map(u32::to_string).collect();
        let mut text = replaced(
            MATRIX,
            &[("repeats = 2", format!("repeats = {}", self.repeats))],
        );
        text += &format!(
            "\n[matrix.axes.seed] # {}\npath = \"training.seed\"\nvalues = [{}]\n",
            self.comments,
            seeds.join(", ")
        );
        if let Some(seq_length) = self.small_seq_length {
            text += "\n[[override]]\nwhere = { model = \"small\" }\n";
            text += &format!("set = {{ \"training.data.seq_length\" = {seq_length} }}\n");
        }
        text
    }

    fn template(&self) -> String {
        let condition = [
            "{% if job",
            "{%  if job",
            "{# a remark #}{% if job",
            "{% if   job",
        ];
        let spelled = condition[self.template_spelling as usize % condition.len()].to_owned();
        let text = replaced(TEMPLATE, &[("{% if job", spelled)]);
        match self.template {
            0 => text,
            n => text + &format!("# meaning {n}\n"),
        }
    }

    fn recipe(&self) -> String {
        let n = self.recipe_toml;
        replaced(
            RECIPE,
            &[(
                "timeout = \"6h\"",
                format!("timeout = \"{}h\" # {n}", n + 1),
            )],
        )
    }
}

fn replaced(text: &str, replacements: &[(&str, String)]) -> String {
    replacements
        .iter()
        .fold(text.to_owned(), |text, (old, new)| {
            assert_eq!(text.matches(old).count(), 1, "`{old}`");
            text.replace(old, new)
        })
}
