// The work: how easy a text is to read. Pure functions that know nothing of HTTP.
"use strict";

const LONG_SENTENCE = 25; // words
const LONGEST_QUOTE = 240; // characters

// Counts and scores of a text, or null when it holds no word.
function audit(text) {
  const sentences = sentencesOf(text);
  const words = sentences.flatMap((sentence) => sentence.words);
  if (words.length === 0) return null;
  const syllables = words.reduce((sum, word) => sum + syllablesOf(word), 0);
  const wordsPerSentence = words.length / sentences.length;
  const syllablesPerWord = syllables / words.length;
  return {
    sentences: sentences.length,
    words: words.length,
    syllables,
    reading_ease: rounded(206.835 - 1.015 * wordsPerSentence - 84.6 * syllablesPerWord), // Flesch
    grade_level: rounded(0.39 * wordsPerSentence + 11.8 * syllablesPerWord - 15.59), // Flesch-Kincaid
    long_sentences: sentences
      .filter((sentence) => sentence.words.length > LONG_SENTENCE)
      .map((sentence) => ({ words: sentence.words.length, text: quoted(sentence.text) })),
  };
}

// The audit for people, in Markdown.
function report(data) {
  const measures = ["sentences", "words", "syllables", "reading_ease", "grade_level"];
  const rows = measures.map((name) => `| ${name.replace("_", " ")} | ${data[name]} |`);
  const long = data.long_sentences.map((sentence) => `- ${sentence.words} words: ${sentence.text}`);
  const findings = long.length ? [`## Sentences of more than ${LONG_SENTENCE} words`, "", ...long, ""] : [];
  return ["# Readability", "", "| measure | value |", "|---|--:|", ...rows, "", ...findings].join("\n");
}

function sentencesOf(text) {
  const prose = text.replace(/^ {0,3}#{1,6} .*$/gm, "").replace(/[*_`>]/g, " "); // Headings are no sentences.
  return prose
    .split(/\n\s*\n|(?<=[.!?…]["'”)]?)\s+/u)
    .map((sentence) => ({ text: sentence, words: wordsOf(sentence) }))
    .filter((sentence) => sentence.words.length > 0);
}

function wordsOf(text) {
  return text.match(/[\p{L}\p{M}\p{N}]+(?:['’-][\p{L}\p{M}\p{N}]+)*/gu) ?? [];
}

function syllablesOf(word) {
  const letters = word.toLowerCase().normalize("NFD").replace(/\P{L}/gu, "");
  const groups = letters.match(/[aeiouy]+/g) ?? [];
  const silent = /.([^aeiouy]e|[^aeiouytd]ed|[^aeiouysxzcg]es)$/; // make, marked, makes
  const spoken = /([^aeiouy]le|[cs]hes)$/; // table, wishes
  const isSilent = silent.test(letters) && !spoken.test(letters);
  return Math.max(1, groups.length - (isSilent ? 1 : 0));
}

function rounded(number) {
  return Math.round(number * 10) / 10;
}

function quoted(text) {
  return [...text.trim().replace(/\s+/g, " ")].slice(0, LONGEST_QUOTE).join("");
}

module.exports = { audit, report };
