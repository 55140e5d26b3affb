//! Arguments of `holdall train`, and those that `holdall plan` shares.

use std::path::PathBuf;

use clap::Args;
use holdall_train::config::{Count, Precision, RunConfig};

use crate::options::{RunOptions, set};

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall train data/image_labels.csv --memory 8GiB\n  \
                  holdall train cars.yml --batch-size 8 --gradient-accumulation 16 --out runs/cars\n  \
                  holdall train photos.csv --model ./clip-vit-base-patch32 --set data.caption=\"a photo of a {make}\"\n  \
                  holdall train FIVES --task segment --model unet --set data.image_size=1024 --memory 8GiB\n  \
                  holdall train --resume --out runs/cars --epochs 30\n\n\
                  Ctrl-C and SIGTERM save and stop; SIGUSR1 saves and goes on.\n\
                  Exit code 0: done; 1: failed; 3: does not fit; 130, 143: stopped by Ctrl-C, SIGTERM: go on with --resume.")]
pub struct TrainArguments {
    /// CONFIG.yml, DATA.csv, a folder with image_labels.csv, with a folder of pictures per class, or with pictures and masks
    #[arg(value_name = "CONFIG|DATA")]
    pub target: Option<String>,
    #[command(flatten)]
    pub training: TrainingOptions,
    /// Go on where the run in that folder was ended
    #[arg(long)]
    pub resume: bool,
    /// Write RUN/tensorboard too: every number as TensorBoard reads it
    #[arg(long)]
    pub tensorboard: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Keys of the config that have options of their own: a line of `train` can be typed with `plan`.
#[derive(Args, Clone)]
pub struct TrainingOptions {
    /// Times that the data is seen
    #[arg(long, aliases = ["num-epochs", "num_epochs"], value_name = "N")]
    pub epochs: Option<usize>,
    /// Learning rate of the model
    #[arg(
        long,
        aliases = ["learning-rate", "learning_rate"],
        value_name = "RATE",
        allow_hyphen_values = true
    )]
    pub lr: Option<f64>,
    /// Threads that decode pictures: a number, or auto
    #[arg(long, alias = "num_workers", value_name = "N")]
    pub num_workers: Option<Count>,
    /// Micro-batches that wait, decoded: a number, or auto
    #[arg(long, value_name = "N")]
    pub prefetch: Option<Count>,
    /// The run's folder
    #[arg(long, aliases = ["output-dir", "output_dir"], value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// A model folder or a preset, instead of the config's
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Begin from random weights, where the model's name means pretrained ones
    #[arg(long, alias = "random_weights")]
    pub random_weights: bool,
    /// The same as --precision f32
    #[arg(long, alias = "no_mixed_precision")]
    pub no_mixed_precision: bool,
}

impl TrainingOptions {
    /// Overrides the config by the typed options.
    pub fn lay_over(&self, config: &mut RunConfig) {
        config.train.epochs = self.epochs.or(config.train.epochs);
        config.train.lr = self.lr.or(config.train.lr);
        config.random_weights |= self.random_weights;
        set(&mut config.num_workers, self.num_workers);
        set(&mut config.prefetch, self.prefetch);
        set(&mut config.model, self.model.clone());
        config.out = self.out.clone().or(config.out.take());
        if self.no_mixed_precision {
            config.precision = Precision::F32;
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: TrainArguments,
    }

    fn lay(line: &str) -> RunConfig {
        let words = ["train"].into_iter().chain(line.split_whitespace());
        let mut config = RunConfig::default();
        Typed::try_parse_from(words)
            .unwrap()
            .arguments
            .training
            .lay_over(&mut config);
        config
    }

    #[test]
    fn what_is_typed_goes_over_the_config() {
        let config =
            lay("--epochs 3 --lr 1e-4 --num_workers 2 --prefetch auto --out runs/1 --model small");
        assert_eq!(
            (config.train.epochs, config.train.lr),
            (Some(3), Some(1e-4))
        );
        assert_eq!(config.num_workers, Count::Exactly(2));
        assert_eq!(config.prefetch, Count::Auto);
        assert_eq!(config.out, Some("runs/1".into()));
        assert_eq!(config.model, "small");
        assert_eq!(lay("--no_mixed_precision").precision, Precision::F32);
        assert_eq!(lay("--learning_rate 1").train.lr, Some(1.0));
        assert_eq!(lay(""), RunConfig::default());
    }

    #[test]
    fn a_count_that_is_none_is_refused() {
        let typed = Typed::try_parse_from(["train", "--num-workers", "many"]);
        let error = typed.map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("expected auto, or a whole number"),
            "{error}"
        );
    }
}
