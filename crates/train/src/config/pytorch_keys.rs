//! What people bring along: keys of PyTorch scripts, and what does their work here.
//!
//! `docs/from-pytorch.md` tells the same at length; a test holds the two together.

/// Keys of other tools that one answer serves.
pub struct Brought {
    /// As other tools spell them, in small letters.
    pub keys: &'static [&'static str],
    /// What to write instead, or why nothing needs to be written.
    pub answer: &'static str,
}

/// The answer to a key, whatever its case and its dashes.
pub fn answer_to(key: &str) -> Option<&'static str> {
    let key = key.to_lowercase().replace('-', "_");
    BROUGHT
        .iter()
        .find(|brought| brought.keys.contains(&key.as_str()))
        .map(|brought| brought.answer)
}

/// All that is answered. Keys that are the same here, such as `num_workers`, are not in it: they are accepted.
pub static BROUGHT: &[Brought] = &[
    Brought {
        keys: &[
            "per_device_train_batch_size",
            "per_gpu_train_batch_size",
            "train_batch_size",
            "micro_batch_size",
            "physical_batch_size",
        ],
        answer: "`train: {batch_size: 8}` is the micro-batch",
    },
    Brought {
        keys: &[
            "per_device_eval_batch_size",
            "val_batch_size",
            "test_batch_size",
        ],
        answer: "`train: {eval_batch_size: 64}`",
    },
    Brought {
        keys: &[
            "accumulation_steps",
            "accum_steps",
            "grad_accum_steps",
            "accumulate_grad_batches",
            "accum_freq",
        ],
        answer: "`train: {gradient_accumulation: 16}`; the gradient is that of the whole batch, whatever the loss compares",
    },
    Brought {
        keys: &[
            "effective_batch_size",
            "global_batch_size",
            "total_batch_size",
        ],
        answer: "`train: {effective_batch: 128}`",
    },
    Brought {
        keys: &[
            "use_gradient_checkpointing",
            "gradient_checkpointing",
            "grad_checkpointing",
            "activation_checkpointing",
        ],
        answer: "`train: {recompute: auto}`, or none, cheap, blocks",
    },
    Brought {
        keys: &[
            "mixed_precision",
            "use_mixed_precision",
            "use_amp",
            "amp",
            "amp_dtype",
            "autocast",
            "fp16",
            "bf16",
            "dtype",
            "torch_dtype",
            "grad_scaler",
            "gradscaler",
            "allow_tf32",
            "tf32",
        ],
        answer: "`precision: auto`, or fp16, bf16, tf32, f32; fp16 scales its loss by itself",
    },
    Brought {
        keys: &["cudnn_benchmark", "cudnn.benchmark", "benchmark"],
        answer: "nothing to do, leave it out: algorithms of products are timed once per shape and kept",
    },
    Brought {
        keys: &[
            "deterministic",
            "cudnn_deterministic",
            "cudnn.deterministic",
            "use_deterministic_algorithms",
        ],
        answer: "nothing to do, leave it out: the same run gives the same bits, always",
    },
    Brought {
        keys: &["torch_compile", "torch.compile", "compile", "compile_mode"],
        answer: "nothing to do, leave it out: a step is a static program from the start",
    },
    Brought {
        keys: &["cuda_graphs", "use_cuda_graphs", "cudagraphs"],
        answer: "nothing to do, leave it out: every program is captured as a CUDA graph and replayed",
    },
    Brought {
        keys: &[
            "empty_cache_frequency",
            "empty_cache",
            "gc_collect",
            "gc_frequency",
        ],
        answer: "nothing to do, leave it out: there is no cache, lifetimes are planned",
    },
    Brought {
        keys: &[
            "pytorch_cuda_alloc_conf",
            "max_split_size_mb",
            "expandable_segments",
            "garbage_collection_threshold",
        ],
        answer: "nothing to do, leave it out: one reservation cannot fragment",
    },
    Brought {
        keys: &[
            "memory_fraction",
            "gpu_memory_fraction",
            "set_per_process_memory_fraction",
            "per_process_memory_fraction",
        ],
        answer: "`memory: 95%`, or a size such as 8GiB",
    },
    Brought {
        keys: &["max_memory", "gpu_memory", "max_memory_gb"],
        answer: "`memory: 8GiB`, 8GB, 80% or auto",
    },
    Brought {
        keys: &["prefetch_factor"],
        answer: "`prefetch: auto`, or how many micro-batches wait",
    },
    Brought {
        keys: &["pin_memory", "non_blocking", "persistent_workers"],
        answer: "nothing to do, leave it out: batches are pinned, copied asynchronously, and workers stay",
    },
    Brought {
        keys: &["img_size", "input_size", "resolution"],
        answer: "`data: {image_size: 1024}` for segmentation; other models resize pictures to what they take",
    },
    Brought {
        keys: &["trainer", "training"],
        answer: "`train: {batch_size: 1, gradient_accumulation: 4}`; `precision: fp16` stands at the top level",
    },
    Brought {
        keys: &[
            "batch_norm",
            "batchnorm",
            "use_batchnorm",
            "use_batch_norm",
            "norm_layer",
        ],
        answer: "`unet: {norm: group}`, or instance: what a batch norm computes depends on how the batch is split",
    },
    Brought {
        keys: &[
            "arch",
            "architecture",
            "encoder_name",
            "encoder_weights",
            "backbone",
        ],
        answer: "`model: unet`, unet-small, nnunet, nnunet-resenc, or a folder; `unet:` changes a preset",
    },
    Brought {
        keys: &[
            "features",
            "base_channels",
            "init_features",
            "n_filters",
            "num_filters",
        ],
        answer: "`unet: {channels: [64, 128, 256, 512, 1024]}`, a number per stage",
    },
    Brought {
        keys: &["in_channels", "n_channels", "num_channels"],
        answer: "leave it out: pictures say how many channels they have; `unet: {input_channels: 1}` without data",
    },
    Brought {
        keys: &["loss", "loss_fn", "loss_function", "loss_type", "criterion"],
        answer: "`losses: {bce: 1, dice: 1}`, with cross_entropy, focal and tversky beside them",
    },
    Brought {
        keys: &["bce_weight", "dice_weight", "dice_loss_weight"],
        answer: "`losses: {bce: 1, dice: 1}` are weights",
    },
    Brought {
        keys: &["batch_dice"],
        answer: "`losses: {dice_over: batch}` is the default, or image",
    },
    Brought {
        keys: &["pos_weight"],
        answer: "`losses: {class_weights: [1, 5]}`, the background first",
    },
    Brought {
        keys: &["ignore_index"],
        answer: "`data: {ignore: 255}`, a value of the masks",
    },
    Brought {
        keys: &[
            "image_dir",
            "images_dir",
            "img_dir",
            "mask_dir",
            "masks_dir",
            "label_dir",
        ],
        answer: "`data: {image_subdir: images, label_subdir: masks}`, folders below `train`; usual names are found without",
    },
    Brought {
        keys: &["patch_size", "crop_size"],
        answer: "`data: {patch: 512}`",
    },
    Brought {
        keys: &["tiles", "tile_size", "roi_size", "sliding_window"],
        answer: "`holdall eval RUN DATA --tiles 1024`, and predict's `--tiles`; a model that is trained on patches (`data: {patch: 512}`) \
                 uses tiles of that size by itself",
    },
    Brought {
        keys: &["train_ratio", "train_split"],
        answer: "`data: {validation: 20%}` is the share that is held out",
    },
    Brought {
        keys: &[
            "max_grad_norm",
            "clip_grad_norm",
            "clip_grad_norm_",
            "grad_clip",
            "gradient_clip_val",
            "grad_clip_norm",
        ],
        answer: "`train: {clip_norm: 1.0}`, or none",
    },
    Brought {
        keys: &["learning_rate", "base_lr", "initial_lr"],
        answer: "`train: {lr: 2e-5}`; the label head has `lr_head`, parameters by name have `lr_by`",
    },
    Brought {
        keys: &["num_epochs", "num_train_epochs", "max_epochs", "n_epochs"],
        answer: "`train: {epochs: 20}`",
    },
    Brought {
        keys: &["warmup_steps", "num_warmup_steps"],
        answer: "`train: {warmup: 500}` counts optimizer steps",
    },
    Brought {
        keys: &["warmup_ratio", "warmup_proportion", "warmup_epochs"],
        answer: "`train: {warmup: 5%}` is a share of all steps",
    },
    Brought {
        keys: &["lr_scheduler", "lr_schedule"],
        answer: "`train: {schedule: cosine}`, or linear, constant",
    },
    Brought {
        keys: &["min_lr", "eta_min", "lr_min"],
        answer: "`train: {lr_end: 0.1}` is the share of `lr` that is left at the end",
    },
    Brought {
        keys: &[
            "optim",
            "optimizer_type",
            "optimizer_name",
            "adam",
            "adamw",
            "sgd",
        ],
        answer: "the optimizer is AdamW; its numbers stand under `train: optimizer:` (beta1, beta2, eps, weight_decay)",
    },
    Brought {
        keys: &[
            "use_8bit_adam",
            "adamw_8bit",
            "adam8bit",
            "optim_bits",
            "use_8bit_optimizer",
        ],
        answer: "`train: {optimizer_state: 8bit}`",
    },
    Brought {
        keys: &[
            "use_ema",
            "ema_decay",
            "model_ema",
            "model_ema_decay",
            "ema_rate",
        ],
        answer: "`train: {ema: 0.999}` evaluates and exports a running average of the weights",
    },
    Brought {
        keys: &["wise_ft", "wiseft_alpha", "alpha_interpolation"],
        answer: "`train: {interpolate: 0.5}` is the share of the trained weights in what is evaluated and exported",
    },
    Brought {
        keys: &[
            "betas",
            "adam_beta1",
            "adam_beta2",
            "adam_epsilon",
            "epsilon",
        ],
        answer: "`train: {optimizer: {beta1: 0.9, beta2: 0.98, eps: 1e-6}}`",
    },
    Brought {
        keys: &["wd", "decay"],
        answer: "`train: {optimizer: {weight_decay: 0.1}}`",
    },
    Brought {
        keys: &["patience", "early_stopping", "early_stopping_patience"],
        answer: "`train: {early_stop: 5}` counts evaluations without improvement",
    },
    Brought {
        keys: &[
            "eval_steps",
            "eval_interval",
            "evaluation_strategy",
            "eval_strategy",
            "val_check_interval",
        ],
        answer: "`train: {eval_every: epoch}`, or a number of steps, or none",
    },
    Brought {
        keys: &[
            "save_steps",
            "save_strategy",
            "save_interval",
            "checkpoint_every",
        ],
        answer: "`train: {save_every: epoch}`, or a number of steps",
    },
    Brought {
        keys: &["metric_for_best_model", "monitor"],
        answer: "`train: {best_metric: NAME}`",
    },
    Brought {
        keys: &[
            "resume_from_checkpoint",
            "resume",
            "checkpoint_path",
            "resume_training",
            "checkpoint",
        ],
        answer: "`--resume` on the command line, with the run's folder as `--out`",
    },
    Brought {
        keys: &[
            "output_dir",
            "save_dir",
            "checkpoint_dir",
            "log_dir",
            "logging_dir",
        ],
        answer: "`out: RUN`, or `--out RUN`: one folder holds all of a run",
    },
    Brought {
        keys: &[
            "wandb",
            "use_wandb",
            "wandb_project",
            "wandb_entity",
            "report_to",
            "tensorboard",
            "use_tensorboard",
            "logger",
        ],
        answer: "`--tensorboard` on the command line writes event files into the run's folder, which `wandb sync RUN/tensorboard` uploads; \
                 `holdall report RUN` is one HTML file",
    },
    Brought {
        keys: &[
            "logging_steps",
            "log_interval",
            "log_every",
            "log_every_n_steps",
            "log_freq",
            "print_freq",
        ],
        answer: "nothing to do, leave it out: every step is a line of metrics.jsonl",
    },
    Brought {
        keys: &[
            "world_size",
            "local_rank",
            "num_processes",
            "nproc_per_node",
            "distributed",
            "ddp",
            "dist_backend",
            "ddp_backend",
            "strategy",
        ],
        answer: "`--processes 4` on the command line starts four processes, one per device; `mpirun -n 8 holdall train ...` or srun does on \
                 several machines; `effective_batch` is the total of all",
    },
    Brought {
        keys: &["gpus", "num_gpus", "n_gpu", "n_gpus", "devices", "gpu_ids"],
        answer: "`--processes 2` on the command line takes two GPUs, one process each; `--device cuda:1` takes the second alone",
    },
    Brought {
        keys: &["max_train_steps", "num_training_steps", "total_steps"],
        answer: "`train: {max_steps: 1000}` counts optimizer steps",
    },
    Brought {
        keys: &["experiment_name", "exp_name"],
        answer: "`run_name: cars`, or `out: runs/cars`",
    },
    Brought {
        keys: &["drop_last"],
        answer: "nothing to do, leave it out: a short last batch is padded with rows of weight zero, never dropped",
    },
    Brought {
        keys: &["shuffle", "sampler", "weighted_sampler"],
        answer: "`train: {sampling: shuffle}`, or balanced",
    },
    Brought {
        keys: &["device", "cuda", "use_cuda", "gpu", "gpu_id", "accelerator"],
        answer: "`--device` on the command line says where to run",
    },
    Brought {
        keys: &[
            "model_name",
            "model_name_or_path",
            "pretrained",
            "pretrained_model",
        ],
        answer: "`model:` takes a folder, or the name of a preset",
    },
    Brought {
        keys: &[
            "train_csv",
            "csv_path",
            "csv_file",
            "data_path",
            "dataset",
            "data_dir",
        ],
        answer: "`data: {train: data/image_labels.csv}`",
    },
    Brought {
        keys: &["val_split", "validation_split", "test_size", "val_ratio"],
        answer: "`data: {validation: 10%}`, or a CSV, or {column: split}",
    },
    Brought {
        keys: &["num_classes", "num_labels", "n_classes"],
        answer: "`data: {label: COLUMN}` counts its classes; `labels: 10` without data",
    },
    Brought {
        keys: &["random_seed", "manual_seed", "random_state"],
        answer: "`seed: 0`",
    },
    Brought {
        keys: &["data_filename"],
        answer: "`data: {train: reports.csv}`; separators `,` `;` tab and `α` are told from the header",
    },
    Brought {
        keys: &["target_label"],
        answer: "`data: {caption: Report}` names the column of texts",
    },
    Brought {
        keys: &["datapoint_loc_label"],
        answer: "`data: {video: FileName}` names the column of clips",
    },
    Brought {
        keys: &["groupby_column", "multi_video"],
        answer: "`data: {group: StudyInstanceUID, num_videos: 4}` makes one sample of several clips",
    },
    Brought {
        keys: &["shuffle_videos"],
        answer: "nothing to do, leave it out: clips of a group keep their order, samples are shuffled",
    },
    Brought {
        keys: &[
            "resize",
            "use_cls_token",
            "aggregate_videos_tokens",
            "per_video_pool",
            "attention_pool_heads",
        ],
        answer: "nothing to do, leave it out: sizes and heads are the model's",
    },
    Brought {
        keys: &["rand_augment"],
        answer: "`data: {augment: {flip: true, brightness: 0.2}}`, the same for all frames of a clip",
    },
    Brought {
        keys: &["max_text_length"],
        answer: "`tokens: 128`, or leave it out for what the texts need",
    },
    Brought {
        keys: &["aggregator_depth", "video_pooling_mode"],
        answer: "`video_text: {pooling: temporal, temporal_layers: 2}`, or mean, attention",
    },
    Brought {
        keys: &[
            "freeze_backbone",
            "freeze_encoder",
            "freeze_base_model",
            "linear_probe",
            "linear_probing",
        ],
        answer: "`train: {freeze: all but heads}`, or names: `freeze: [encoder]`",
    },
    Brought {
        keys: &[
            "freeze_vision",
            "freeze_vision_model",
            "freeze_vision_tower",
            "freeze_image_encoder",
            "lock_image",
        ],
        answer: "`train: {freeze: [vision_model]}`",
    },
    Brought {
        keys: &[
            "freeze_text",
            "freeze_text_model",
            "freeze_text_encoder",
            "lock_text",
        ],
        answer: "`train: {freeze: [text_model]}`",
    },
    Brought {
        keys: &[
            "freeze_layers",
            "frozen_layers",
            "unfreeze_layers",
            "trainable_layers",
            "unlocked_groups",
            "lock_image_unlocked_groups",
            "lock_text_unlocked_layers",
            "unlock",
            "requires_grad",
        ],
        answer: "`train: {freeze: {vision_model: all but 2}}` trains the last two blocks; `freeze: [NAME, \"*.bias\"]` goes by name",
    },
    Brought {
        keys: &[
            "peft",
            "peft_config",
            "lora_config",
            "use_lora",
            "use_peft",
            "r",
            "lora_r",
            "lora_rank",
            "lora_alpha",
            "lora_dropout",
            "target_modules",
            "modules_to_save",
        ],
        answer: "`train: {lora: {rank: 16, alpha: 32, targets: [q_proj, v_proj], dropout: 0.05}}`; heads are trained along",
    },
    Brought {
        keys: &["video_freeze_ratio", "text_freeze_ratio"],
        answer: "`train: {freeze: {vision_model: all but 4}}` trains the last four blocks of a tower; `all` freezes it",
    },
    Brought {
        keys: &[
            "decoder_layers",
            "decoder_heads",
            "decoder_intermediate_size",
            "max_position_embeddings",
        ],
        answer: "`video_text: {decoder: {layers: 6, heads: 8, inner: 1024, tokens: 128}}`",
    },
    Brought {
        keys: &["vocab_size", "use_biomed_tokenizer"],
        answer: "leave it out: `video_text: {text_model: FOLDER}` brings a BERT with its tokenizer",
    },
    Brought {
        keys: &["text_lr", "captioning_lr", "video_lr"],
        answer: "`train: {lr_by: {\"text_model.*\": 2e-5, \"decoder.*\": 1e-4}}`",
    },
    Brought {
        keys: &[
            "video_weight_decay",
            "text_weight_decay",
            "captioning_weight_decay",
        ],
        answer: "`train: {optimizer: {weight_decay: 0.01}}` for all of them",
    },
    Brought {
        keys: &["num_warmup_percent"],
        answer: "`train: {warmup: 10%}`",
    },
    Brought {
        keys: &["scheduler_name"],
        answer: "`train: {schedule: cosine}`, or linear, constant: all begin with a warmup",
    },
    Brought {
        keys: &["loss_weights"],
        answer: "`losses: {contrastive: 2.0, caption: 0.3}`",
    },
    Brought {
        keys: &["contrastive_loss_type"],
        answer: "nothing to do, leave it out: all clips of the effective batch are negatives, in both directions",
    },
    Brought {
        keys: &["loss_warmup_steps"],
        answer: "leave it out: losses count the same from the first step; `train: {warmup: 500}` raises the learning rate",
    },
    Brought {
        keys: &["recall_k", "ndcg_k"],
        answer: "nothing to do, leave it out: recall at 1, 5 and 10 and NDCG at 5 are always there",
    },
    Brought {
        keys: &["max_generation_length"],
        answer: "`generation: {max_tokens: 128}`",
    },
    Brought {
        keys: &["captioning_do_sample", "captioning_temperature"],
        answer: "`generation: {method: sample, temperature: 0.7}`; greedy is the default",
    },
    Brought {
        keys: &["save_best"],
        answer: "nothing to do, leave it out: the best model is kept; `train: {best_metric: NAME}` says by what",
    },
    Brought {
        keys: &["max_length", "max_seq_length", "context_length"],
        answer: "`tokens: 77`, or leave it out for as many as the model has positions",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::hint_for_unknown;

    const DOCUMENT: &str = include_str!("../../../../docs/from-pytorch.md");

    fn block(language: &str) -> &'static str {
        let (_, after) = DOCUMENT.split_once(&format!("```{language}\n")).unwrap();
        after.split_once("```").unwrap().0
    }

    #[test]
    fn the_documents_example_is_accepted() {
        let config = crate::config::tests::parse(block("yaml")).unwrap();
        assert_eq!(config.train.gradient_accumulation, Some(16));
        for line in block("python").lines().filter(|line| line.contains(':')) {
            let key = line.split('"').nth(1).unwrap();
            let hint = hint_for_unknown(key, &[]);
            assert!(
                answer_to(key).is_some() || hint.contains("belongs"),
                "{key}"
            );
        }
    }

    #[test]
    fn every_key_is_in_the_document() {
        let document = DOCUMENT.to_lowercase();
        for key in BROUGHT.iter().flat_map(|brought| brought.keys) {
            let spelt = document.contains(&format!("`{key}`"));
            assert!(spelt, "docs/from-pytorch.md lacks `{key}`");
        }
    }

    #[test]
    fn every_key_is_answered_once() {
        let mut keys: Vec<_> = BROUGHT.iter().flat_map(|brought| brought.keys).collect();
        let num_keys = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), num_keys);
        for brought in BROUGHT {
            for key in brought.keys {
                let hint = hint_for_unknown(key, &[]);
                assert!(hint.starts_with(brought.answer), "{key}: {hint}");
                assert_eq!(hint_for_unknown(&key.to_uppercase(), &[]), brought.answer);
            }
        }
    }

    /// An answer may not name a key that is itself unknown.
    #[test]
    fn what_is_answered_is_accepted() {
        for brought in BROUGHT {
            let mut quoted = brought.answer.split('`').skip(1).step_by(2);
            let Some(example) = quoted.find(|text| text.contains(": ") && !text.ends_with(':'))
            else {
                continue;
            };
            serde_saphyr::from_str::<crate::config::RunConfig>(example)
                .unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
}
