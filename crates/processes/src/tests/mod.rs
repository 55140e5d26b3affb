mod collectives;
mod meeting;
