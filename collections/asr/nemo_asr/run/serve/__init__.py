"""A server: OpenAI's transcription API, a websocket and a page, over any model that transcribes."""
