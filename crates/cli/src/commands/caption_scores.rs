//! `holdall caption-scores`: BLEU, ROUGE and CIDEr-D of captions from any framework, each named with its tokenizer.

mod inputs;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_files::counted;
use holdall_metrics::captions::{CaptionScorer, CaptionScores, NltkTokens, coco, rouge_score};
use holdall_train::TrainError;
use serde::Serialize;

use crate::options::OutputOptions;
use crate::screen::{print, print_json, tell};

/// Samples tokenized at a time, on all threads.
const BLOCK: usize = 4096;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall caption-scores predictions.csv\n  \
                  holdall caption-scores predictions.csv --candidate generated --reference report --json\n  \
                  holdall caption-scores results.json --references captions_val2014.json\n  \
                  holdall caption-scores candidates.txt --references references_a.txt references_b.txt\n\n\
                  Files, by their names:\n  \
                  .csv           a row per candidate; columns as --candidate and --reference say, or found by usual names\n  \
                  .jsonl         an object per line, with the same keys; a reference is a text or a list of texts\n  \
                  .json          a list of such objects; or, with --references, what pycocoevalcap reads: a list of\n                 \
                  {\"image_id\", \"caption\"} against {\"annotations\": [{\"image_id\", \"caption\"}, ...]}, or {ID: [CAPTION, ...]} both\n  \
                  other names    a candidate per line; --references has a file, or several, with as many lines\n\n\
                  BLEU-1..4, ROUGE-L and CIDEr-D are pycocoevalcap's, over PTB tokens; sentence BLEU is NLTK's, the mean over samples; rouge1, rouge2\n\
                  and rougeL are rouge_score's, stemmed. Figures of different packages cannot be compared with each other.\n\
                  CIDEr-D weighs words by the references of this very file: compare it only over the same references.")]
pub struct CaptionScoresArguments {
    /// Generated captions, with their references in the same file or in --references
    #[arg(value_name = "FILE")]
    pub candidates: PathBuf,
    /// References, where they are not in the same file
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub references: Vec<PathBuf>,
    /// Column or key of the generated caption [default: candidate, prediction, generated, caption or the like]
    #[arg(long, value_name = "NAME")]
    pub candidate: Option<String>,
    /// Column or key of the reference, several where there are [default: reference, references, truth, target or the like]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub reference: Vec<String>,
    /// Words of NLTK's BLEU, which has no tokenizer of its own
    #[arg(long, value_enum, value_name = "HOW", default_value_t = NltkTokensArgument::Whitespace)]
    pub nltk_tokens: NltkTokensArgument,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NltkTokensArgument {
    /// text.split()
    Whitespace,
    /// text.lower().split()
    LowerCase,
    /// The tokens of pycocoevalcap
    Coco,
}

impl From<NltkTokensArgument> for NltkTokens {
    fn from(argument: NltkTokensArgument) -> NltkTokens {
        match argument {
            NltkTokensArgument::Whitespace => NltkTokens::Whitespace,
            NltkTokensArgument::LowerCase => NltkTokens::LowerCase,
            NltkTokensArgument::Coco => NltkTokens::Coco,
        }
    }
}

/// JSON output; its keys are a public interface.
#[derive(Serialize)]
struct ScoresJson {
    samples: usize,
    references: usize,
    pycocoevalcap: CocoJson,
    nltk: NltkJson,
    rouge_score: RougeScoreJson,
}

#[derive(Serialize)]
struct CocoJson {
    tokenizer: &'static str,
    bleu1: f64,
    bleu2: f64,
    bleu3: f64,
    bleu4: f64,
    rouge_l: f64,
    cider_d: f64,
}

#[derive(Serialize)]
struct NltkJson {
    tokenizer: &'static str,
    sentence_bleu: f64,
    sentence_bleu_method1: f64,
}

#[derive(Serialize)]
struct RougeScoreJson {
    tokenizer: &'static str,
    rouge1: f64,
    rouge2: f64,
    #[serde(rename = "rougeL")]
    rouge_l: f64,
}

impl ScoresJson {
    fn new(scores: &CaptionScores, nltk_tokens: NltkTokens) -> ScoresJson {
        let [bleu1, bleu2, bleu3, bleu4] = scores.bleu;
        ScoresJson {
            samples: scores.num_samples,
            references: scores.num_references,
            pycocoevalcap: CocoJson {
                tokenizer: coco::TOKENIZER,
                bleu1,
                bleu2,
                bleu3,
                bleu4,
                rouge_l: scores.rouge_l,
                cider_d: scores.cider_d,
            },
            nltk: NltkJson {
                tokenizer: nltk_tokens.name(),
                sentence_bleu: scores.sentence_bleu,
                sentence_bleu_method1: scores.sentence_bleu_method1,
            },
            rouge_score: RougeScoreJson {
                tokenizer: rouge_score::TOKENIZER,
                rouge1: scores.rouge_score_1,
                rouge2: scores.rouge_score_2,
                rouge_l: scores.rouge_score_l,
            },
        }
    }
}

pub fn run(arguments: CaptionScoresArguments) -> Result<ExitCode> {
    let nltk_tokens = arguments.nltk_tokens.into();
    let mut scorer = CaptionScorer::new(nltk_tokens);
    let mut block = Vec::with_capacity(BLOCK);
    inputs::read(&arguments, |candidate, references| {
        block.push((candidate.to_owned(), references.to_vec()));
        if block.len() == BLOCK {
            scorer.add_all(&block);
            block.clear();
        }
    })?;
    scorer.add_all(&block);
    let (scores, _) = scorer.finish();
    if scores.num_samples == 1 {
        tell("Of one sample alone CIDEr-D is always 0: every word is in all references");
    }
    if arguments.output.json {
        print_json(&ScoresJson::new(&scores, nltk_tokens))?;
    } else {
        print(&show(&scores, nltk_tokens))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(scores: &CaptionScores, nltk_tokens: NltkTokens) -> String {
    let [bleu1, bleu2, bleu3, bleu4] = scores.bleu;
    let mut text = format!(
        "{} against {}\n",
        counted(scores.num_samples, "candidate"),
        counted(scores.num_references, "reference")
    );
    type Figures<'a> = &'a [(&'a str, f64)];
    let sections: [(&str, &str, Figures<'_>); 3] = [
        (
            "pycocoevalcap",
            coco::TOKENIZER,
            &[
                ("BLEU-1", bleu1),
                ("BLEU-2", bleu2),
                ("BLEU-3", bleu3),
                ("BLEU-4", bleu4),
                ("ROUGE-L", scores.rouge_l),
                ("CIDEr-D", scores.cider_d),
            ],
        ),
        (
            "NLTK, mean over samples",
            nltk_tokens.name(),
            &[
                ("sentence BLEU", scores.sentence_bleu),
                ("sentence BLEU, method1", scores.sentence_bleu_method1),
            ],
        ),
        (
            "rouge_score, mean F over samples",
            rouge_score::TOKENIZER,
            &[
                ("rouge1", scores.rouge_score_1),
                ("rouge2", scores.rouge_score_2),
                ("rougeL", scores.rouge_score_l),
            ],
        ),
    ];
    for (package, tokenizer, rows) in sections {
        text += &format!("{package} (tokens: {tokenizer})\n");
        for (name, score) in rows {
            text += &format!("  {name:<24}{score:.4}\n");
        }
    }
    text
}

fn bad_input(text: String) -> anyhow::Error {
    TrainError::Config(text).into()
}
