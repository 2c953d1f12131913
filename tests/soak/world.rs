//! What a project of the soak says, and the files that say so.

use std::fs;

use crate::support::{Dice, Project};

/// All that a training can read. Each number is a version that the trainer itself tells the
/// journal.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    pub seq_length: u32,
    pub flavor: u32,
    pub environment: u32,
    pub template: u32,
    pub helper: u32,
    pub trainer: u32,
    pub data: u32,
    /// In a file that only the command names, unless `is_declared`.
    pub words: u32,
    pub is_declared: bool,
    pub repeats: u32,
    /// Read by no training.
    pub price: u32,
    pub remark: u32,
}

pub const MODELS: [(&str, u32); 2] = [("small", 32), ("large", 64)];

pub const MOST_REPEATS: usize = 3;

impl Default for World {
    fn default() -> Self {
        let (seq_length, repeats) = (16, 2);
        Self {
            seq_length,
            repeats,
            flavor: 0,
            environment: 0,
            template: 0,
            helper: 0,
            trainer: 0,
            data: 0,
            words: 0,
            is_declared: false,
            price: 1,
            remark: 0,
        }
    }
}

impl World {
    /// What a training of a model must have read, in the trainer's words.
    pub fn training(&self, vocab_size: u32) -> String {
        format!("{} words {}", self.without_words(vocab_size), self.words)
    }

    /// The same but for the file that nobody declares.
    pub fn without_words(&self, vocab_size: u32) -> String {
        let Self {
            seq_length,
            flavor,
            environment,
            template,
            helper,
            trainer,
            data,
            ..
        } = self;
        format!(
            "model {vocab_size} seq {seq_length} flavor {flavor} env {environment} template {template} helper {helper} trainer {trainer} data {data}"
        )
    }

    /// Changes one thing. Versions of files only go up, but for one that is put back by the caller.
    pub fn edit(&mut self, dice: &mut Dice) {
        match dice.roll(15) {
            0 => self.seq_length = dice.pick(&[16, 32, 64]),
            1 => self.flavor += 1,
            2 => self.environment = dice.roll(3) as u32,
            3 => self.template += 1,
            4 => self.helper += 1,
            5 | 6 => self.trainer += 1,
            7 | 8 => self.data += 1,
            9 => self.repeats = dice.pick(&[1, 2, 3]),
            10 => self.price += 1,
            11 | 12 => self.words += 1,
            13 => self.is_declared = false,
            _ => self.remark += 1,
        }
    }

    /// Writes the files that differ, half of them in place and half of them by a rename, as editors
    /// do.
    pub fn save(&self, project: &Project, dice: &mut Dice) {
        for (name, text) in self.files() {
            if fs::read_to_string(project.path(name)).is_ok_and(|there| there == text) {
                continue;
            }
            if dice.roll(2) == 0 || !project.path(name).exists() {
                project.write(name, &text);
            } else {
                project.write("../new", &text);
                #[expect(clippy::disallowed_methods, reason = "plays an editor")]
                fs::rename(project.path("../new"), project.path(name)).unwrap();
            }
        }
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        let Self {
            seq_length,
            flavor,
            environment,
            template,
            helper,
            trainer,
            data,
            words,
            repeats,
            price,
            remark,
            ..
        } = self;
        let inputs = if self.is_declared { ", words.txt" } else { "" };
        vec![
            (
                "config.yaml",
                format!(
                    r#"# remark {remark}
hardware:
  platforms:
    cpu: {{ vendor: cpu, num_gpus: 1, env: {{ OF_PLATFORM: "{environment}" }} }}
models:
  small: {{ architecture: llama, num_layers: 1, hidden_size: 8, ffn_hidden_size: 16, num_attention_heads: 2, vocab_size: 32 }}
  large: {{ architecture: llama, num_layers: 1, hidden_size: 8, ffn_hidden_size: 16, num_attention_heads: 2, vocab_size: 64 }}
training:
  data: {{ micro_batch_size: 1, global_batch_size: 1, seq_length: {seq_length} }}
  duration: {{ train_iters: 4 }}
  optimizer: {{ type: adamw, learning_rate: 1e-3 }}
  precision: {{ default: fp32 }}
parallelism:
  single: {{ num_gpus: 1, DP: 1 }}
frameworks:
  cmd: {{ command: [bash, train.sh, words.txt], inputs: [train.sh, "src/**"{inputs}], share: true, flavor: {flavor} }}
benchmarking:
  warmup: {{ skip_steps: 1 }}
  runs: {{ cooldown_seconds: 0 }}
  enhanced_metrics:
    cloud_costs:
      cpu: {{ per_gpu_hour: {price}.00, currency: EUR, source: made up }}
"#
                ),
            ),
            (
                "matrix.toml",
                format!(
                    "[matrix]\nname = \"m\"\nplatform = \"cpu\"\nframework = \"cmd\"\nmodel = [\"small\", \"large\"]\nparallelism = \"single\"\nrepeats = {repeats}\n"
                ),
            ),
            (
                "recipes/cmd/recipe.toml",
                include_str!("../../recipes/cmd/recipe.toml").to_owned(),
            ),
            ("recipes/cmd/helper.txt", format!("{helper}\n")),
            (
                "templates/cmd.sh.j2",
                format!(
                    "export TEMPLATE={template}\n{}",
                    include_str!("../../templates/cmd.sh.j2")
                ),
            ),
            ("src/data.txt", format!("{data}\n")),
            ("words.txt", format!("{words}\n")),
            ("train.sh", format!("version={trainer}\n{TRAINER}")),
        ]
    }
}

/// Says in the journal what it read, when it begins and when it ends. Its step time is a function
/// of that, so a figure shows what it was measured with. Bash reads a function whole before it runs
/// it.
///
/// Now and then a worker stays behind in a session of its own, for tprimat to end.
///
/// One process does all of it but sleep: a subshell would look like the trainer, and if it were
/// killed in the trainer's place, the trainer would go on without what the subshell had to say.
const TRAINER: &str = r#"main() {
    local job helper data words words_file=$1
    read -r -d '' job < "$TPRIMAT_JOB"
    [[ $job =~ '"vocab_size": '([0-9]+) ]] && vocab_size=${BASH_REMATCH[1]}
    [[ $job =~ '"seq_length": '([0-9]+) ]] && seq_length=${BASH_REMATCH[1]}
    [[ $job =~ '"flavor": '([0-9]+) ]] && flavor=${BASH_REMATCH[1]}
    tell() {
        read -r helper < "$TPRIMAT_RECIPE_DIR/helper.txt"
        read -r data < src/data.txt
        read -r words < "$words_file"
        told="model $vocab_size seq $seq_length flavor $flavor env $OF_PLATFORM template $TEMPLATE helper $helper trainer $version data $data words $words"
        printf '%s\n' "$told" > "$TPRIMAT_PROJECT_DIR/../journal/$TPRIMAT_RUN_ID.$1" || exit 9
    }
    tell begin
    if ((RANDOM % 4 == 0)); then setsid sleep 30 < /dev/null & fi
    echo "told: $told"
    local at code sum=0
    for ((at = 0; at < ${#told}; at++)); do
        printf -v code %d "'${told:at:1}"
        sum=$(((sum * 31 + code) % 100000))
    done
    printf '{"event":"start","schema":"tprimat.events/1","effective":{"seq_length":%d,"global_batch_size":1,"num_gpus":1}}\n' "$seq_length"
    for s in 1 2 3 4; do
        sleep 0.04
        printf '{"event":"step","step":%d,"step_time_seconds":0.1%d,"loss":%d.5}\n' $s $((sum + 100000)) $((9 - s))
    done
    printf '{"event":"end","status":"ok","steps":4}\n'
    tell end
    exit 0
}
main "$@"
"#;
